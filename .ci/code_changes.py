"""Small changes of functions: mistakes that tests should notice, such as a dropped statement."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import CodeType
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """The function that a change is in, as its code object names it."""

    qualname: str
    first_line: int


class Change(NamedTuple):
    """One change: the function named `edit` edits the node of type `node` at this line and column."""

    place: Place
    line: int
    column: int
    node: str
    edit: str


def _drop_statement(node: ast.AST) -> ast.AST:
    return ast.copy_location(ast.Pass(), node)


def _return_none(node: ast.Return) -> ast.AST:
    node.value = ast.Constant(None)
    return node


def _make_true(node: ast.If | ast.While | ast.IfExp) -> ast.AST:
    node.test = ast.Constant(value=True)
    return node


def _make_false(node: ast.If | ast.While | ast.IfExp) -> ast.AST:
    node.test = ast.Constant(value=False)
    return node


def _keep_first(node: ast.BoolOp) -> ast.AST:
    return node.values[0]


def _keep_last(node: ast.BoolOp) -> ast.AST:
    return node.values[-1]


def _change_comparison(node: ast.Compare) -> ast.AST:
    node.ops = [_OTHER_COMPARISONS[type(node.ops[0])]()]
    return node


def _add_one(node: ast.Constant) -> ast.AST:
    assert isinstance(node.value, int)
    node.value += 1
    return node


def _flip_sign(node: ast.BinOp) -> ast.AST:
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
    return node


def _drop_keyword(node: ast.Call) -> ast.AST:
    node.keywords.pop()
    return node


def _drop_not(node: ast.UnaryOp) -> ast.AST:
    return node.operand


_OTHER_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
"""The comparison that takes the place of each: its opposite, or the same with its bound moved by one."""
_EDITS: dict[str, Callable[..., ast.AST]] = {
    edit.__name__: edit
    for edit in (
        _drop_statement,
        _return_none,
        _make_true,
        _make_false,
        _keep_first,
        _keep_last,
        _change_comparison,
        _add_one,
        _flip_sign,
        _drop_keyword,
        _drop_not,
    )
}


def _list_edits(node: ast.AST) -> tuple[Callable[..., ast.AST], ...]:
    match node:
        case ast.Expr(value=ast.Constant()):
            return ()  # a docstring
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Return(value=None):
            return (_drop_statement,)
        case ast.Return():
            return (_return_none,)
        case ast.If() | ast.While() | ast.IfExp():
            return (_make_true, _make_false)
        case ast.BoolOp():
            return (_keep_first, _keep_last)
        case ast.Compare(ops=[_]):
            return (_change_comparison,)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return (_add_one,)
        case ast.BinOp(op=ast.Add() | ast.Sub()):
            return (_flip_sign,)
        case ast.Call(keywords=[*_, _]):
            return (_drop_keyword,)
        case ast.UnaryOp(op=ast.Not()):
            return (_drop_not,)
    return ()


def changes_in(source: str) -> Iterator[Change]:
    """Yield all changes of the functions and methods of a module. Code that runs at import stays as it is."""
    for place, function in _find_functions(ast.parse(source), ""):
        for statement in function.body:
            for node in ast.walk(statement):
                for edit in _list_edits(node):
                    yield Change(place, node.lineno, node.col_offset, type(node).__name__, edit.__name__)  # type: ignore[attr-defined]  # each has a place


def _find_functions(parent: ast.AST, prefix: str) -> Iterator[tuple[Place, Function]]:
    """Yield functions and methods; those inside others belong to the outer one."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            yield from _find_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, Function):
            first = node.decorator_list[0] if node.decorator_list else node
            yield Place(prefix + node.name, first.lineno), node


class _ChangeApplier(ast.NodeTransformer):
    """Makes one change."""

    def __init__(self, change: Change) -> None:
        self._change: Change | None = change

    def visit(self, node: ast.AST) -> ast.AST:
        node = self.generic_visit(node)
        change = self._change
        place = getattr(node, "lineno", 0), getattr(node, "col_offset", 0), type(node).__name__
        if change is not None and place == (change.line, change.column, change.node):
            self._change = None
            return ast.copy_location(_EDITS[change.edit](node), node)
        return node


def changed_code(source: str, file: str, change: Change) -> CodeType:
    """Return the code of the changed function. Raises `LookupError` if the compiler has left it out."""
    tree = ast.parse(source)
    _ChangeApplier(change).visit(tree)
    return _find_code(compile(ast.fix_missing_locations(tree), file, "exec"), change.place)


def _find_code(code: CodeType, place: Place) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if (constant.co_qualname, constant.co_firstlineno) == place:
                return constant
            if place.qualname.startswith(f"{constant.co_qualname}."):
                return _find_code(constant, place)
    raise LookupError(place.qualname)
