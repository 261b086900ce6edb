"""Anchors of slips: a place in the product by module, qualified name and text, whatever its line is.

A text of one line is a part of a line. A text of several lines is whole lines, whatever their common indentation is.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from promise_table import Slip


class AnchorError(Exception):
    """A slip does not apply to this tree. The text names what moved or changed."""


class MovedError(AnchorError):
    """The function of a slip is in another module now."""

    def __init__(self, slip: str, where: str, now: str) -> None:
        super().__init__(f"slip {slip}: {where} has moved to {now}: `make fix` writes that")
        self.now = now


@dataclass(frozen=True, slots=True)
class Change:
    """File with the text that it has after a slip."""

    path: Path
    text: str


def change_of(root: Path, slip: Slip) -> Change:
    """Return the change that a slip makes to a tree.

    Raises `MovedError` if its function is in one other module of the same package. Raises `AnchorError` if the function
    or the text is not there once, or if the changed code is no Python.
    """
    module, _, name = slip.where.partition(":")
    path = _module_path(root, module)
    source = path.read_text(encoding="utf-8") if path else ""
    span = _span(source, name) if path else None
    if path is None or span is None:
        raise _not_found(root, slip, module, name)
    begin, end = span
    lines = source.splitlines(keepends=True)
    body = "".join(lines[begin:end])
    changed = _replaced(slip, body)
    text = "".join(lines[:begin]) + changed + "".join(lines[end:])
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise AnchorError(f"slip {slip.name}: {slip.where} is no Python after it: {error}") from error
    return Change(path.relative_to(root), text)


def _replaced(slip: Slip, body: str) -> str:
    text, becomes = slip.text.strip("\n"), slip.becomes.strip("\n")
    if "\n" not in text:
        if (count := body.count(text)) != 1:
            raise AnchorError(f"slip {slip.name}: {slip.where} has {text!r} {count} times, not once: anchor it anew")
        return body.replace(text, becomes)
    lines = body.splitlines()
    wanted = textwrap.dedent(text).splitlines()
    begins = [at for at in range(len(lines)) if _dedented(lines[at : at + len(wanted)]) == wanted]
    if len(begins) != 1:
        raise AnchorError(f"slip {slip.name}: {slip.where} has its lines {len(begins)} times, not once: anchor it anew")
    at = begins[0]
    margin = lines[at][: len(lines[at]) - len(lines[at].lstrip())][: _margin_of(lines[at : at + len(wanted)])]
    lines[at : at + len(wanted)] = textwrap.indent(textwrap.dedent(becomes), margin).splitlines()
    return "\n".join(lines) + "\n"


def _dedented(lines: list[str]) -> list[str]:
    return textwrap.dedent("\n".join(lines)).splitlines()


def _margin_of(lines: list[str]) -> int:
    return min(len(line) - len(line.lstrip()) for line in lines if line.strip())


def _module_path(root: Path, module: str) -> Path | None:
    relative = Path(*module.split("."))
    for component in sorted(root.iterdir()):
        for path in (component / relative.with_suffix(".py"), component / relative / "__init__.py"):
            if path.is_file():
                return path
    return None


def _span(source: str, name: str) -> tuple[int, int] | None:
    """Return the lines of a class, function or constant by its qualified name; of all lines without a name."""
    if not name:
        return 0, len(source.splitlines())
    node: ast.AST = ast.parse(source)
    for part in name.split("."):
        found = next((child for child in _children(node) if _name_of(child) == part), None)
        if found is None:
            return None
        node = found
    assert isinstance(node, ast.stmt)
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)]) - 1, node.end_lineno or node.lineno


def _children(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, also those under an `if` or a `try`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _children(child)


def _name_of(node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else ""


def _not_found(root: Path, slip: Slip, module: str, name: str) -> AnchorError:
    package = module.partition(".")[0]
    folder = next((path for path in sorted(root.glob(f"*/{package}")) if path.is_dir()), None)
    if folder is None:
        return AnchorError(f"slip {slip.name}: there is no package {package}")
    found = [path for path in sorted(folder.rglob("*.py")) if name and _span(path.read_text(encoding="utf-8"), name)]
    places = [f"{'.'.join(path.relative_to(folder.parent).with_suffix('').parts)}:{name}" for path in found]
    if len(places) == 1:
        return MovedError(slip.name, slip.where, places[0])
    told = f"{name} stands in {', '.join(places)}" if places else f"no module of {package} has {name}"
    return AnchorError(f"slip {slip.name}: {slip.where} is not there, and {told}: anchor it anew")
