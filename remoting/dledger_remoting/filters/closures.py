"""Functions of SQL92 trees: each node becomes a closure over the closures of its operands.

A closure takes the values of the properties that the expression names, in the order of `Names`. It returns true, false,
or None for null. It raises `Incomparable` if the whole expression cannot be true for this message.

Three results are RocketMQ's where SQL would give null. `5 = a` is false if there is no `a`; `a = b` is true if there is
neither; a search in a missing text is false.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from dledger_remoting.filters.syntax import (
    NUMBERS,
    And,
    Comparison,
    In,
    IsNull,
    Kind,
    Literal,
    Match,
    Negation,
    Node,
    Not,
    Operator,
    Or,
    Property,
    Search,
)
from dledger_remoting.filters.values import READERS, order, order_doubles, read_boolean, read_double

Values: TypeAlias = Sequence[str | None]
Value: TypeAlias = bool | int | float | str | None
Closure: TypeAlias = Callable[[Values], Value]
Condition: TypeAlias = Callable[[Values], bool | None]
Names: TypeAlias = dict[str, int]
"""Names of properties, each with the index of its value."""

_COMPARISONS: Final[dict[Operator, Callable[[float, float], bool]]] = {
    Operator.EQUAL: operator.eq,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
}


def condition(node: Node, names: Names) -> Condition:
    """Return the closure of a node that is used as a condition. Adds the names of its properties to `names`."""
    match node:
        case Property(name):
            return _property_as_condition(_index_of(name, names))
        case Literal(_, value):
            constant = value if isinstance(value, bool) else None
            return lambda _: constant
        case Not(operand):
            return _negated(condition(operand, names))
        case And(operands):
            return _conjunction([condition(operand, names) for operand in operands])
        case Or(operands):
            return _disjunction([condition(operand, names) for operand in operands])
        case IsNull(operand):
            return _is_null(_closure(operand, names))
        case In(name, values, negated):
            return _in(_index_of(name, names), values, negated=negated)
        case Match(search, operand, text, negated):
            return _match(search, operand, text, names, negated=negated)
        case Comparison():
            return _comparison(node, names)
        case Negation():
            return _null_of(_closure(node.operand, names))


def _closure(node: Node, names: Names) -> Closure:
    """Return the closure of an operand of any kind."""
    match node:
        case Property(name):
            place = _index_of(name, names)
            return lambda values: values[place]
        case Literal(_, value):
            return lambda _: value
        case Negation(operand):
            return _negation(operand, names)
        case _:
            return condition(node, names)


def _index_of(name: str, names: Names) -> int:
    return names.setdefault(name, len(names))


# -------------------------------------------------------------------- logic


def _property_as_condition(place: int) -> Condition:
    """Return the closure of a property that is a condition by itself.

    It is never true, because RocketMQ does not read a string as a boolean.
    """
    return lambda values: None if values[place] is None else False


def _negated(operand: Condition) -> Condition:
    def negated(values: Values) -> bool | None:
        value = operand(values)
        return None if value is None else not value

    return negated


def _conjunction(operands: Sequence[Condition]) -> Condition:
    def conjunction(values: Values) -> bool | None:
        known = True
        for operand in operands:
            value = operand(values)
            if value is None:
                known = False
            elif not value:
                return False
        return True if known else None

    return conjunction


def _disjunction(operands: Sequence[Condition]) -> Condition:
    def disjunction(values: Values) -> bool | None:
        known = True
        for operand in operands:
            value = operand(values)
            if value is None:
                known = False
            elif value:
                return True
        return False if known else None

    return disjunction


def _is_null(operand: Closure) -> Condition:
    return lambda values: operand(values) is None


def _null_of(operand: Closure) -> Condition:
    """Return a closure that evaluates the operand, which may raise `Incomparable`, and returns null."""

    def nothing(values: Values) -> None:
        operand(values)

    return nothing


# -------------------------------------------------------------------- strings


def _in(place: int, texts: frozenset[str], *, negated: bool) -> Condition:
    def is_in(values: Values) -> bool | None:
        value = values[place]
        return None if value is None else (value in texts) is not negated

    return is_in


_SEARCHES: Final[dict[Search, Callable[[str, str], bool]]] = {
    Search.CONTAINS: operator.contains,
    Search.STARTS_WITH: str.startswith,
    Search.ENDS_WITH: str.endswith,
}


def _match(search: Search, operand: Node, text: str, names: Names, *, negated: bool) -> Condition:
    if not text:
        return lambda _: False
    is_match, value_of = _SEARCHES[search], _closure(operand, names)

    def matches(values: Values) -> bool:
        value = value_of(values)
        return isinstance(value, str) and is_match(value, text) is not negated

    return matches


# -------------------------------------------------------------------- numbers and comparisons


def _negation(operand: Node, names: Names) -> Closure:
    number = _number(operand)
    if number is None:
        return _null_of(_closure(operand, names))
    negative = -number
    return lambda _: negative


def _number(node: Node) -> int | float | None:
    """Return the value of a number literal, with the signs before it applied. Returns None for any other node."""
    if isinstance(node, Negation):
        number = _number(node.operand)
        return None if number is None else -number
    if isinstance(node, Literal) and node.kind in NUMBERS and isinstance(node.value, int | float):
        return node.value
    return None


def _kind(node: Node) -> Kind:
    """Return the kind of a node's value if that is not null."""
    match node:
        case Property():
            return Kind.STRING
        case Literal(kind):
            return kind
        case Negation(operand):
            kind = _kind(operand)
            return kind if kind in NUMBERS else Kind.NULL
        case _:
            return Kind.BOOLEAN


def _comparison(node: Comparison, names: Names) -> Condition:
    holds, left, right = _COMPARISONS[node.operator], node.left, node.right
    is_equality = node.operator is Operator.EQUAL
    if isinstance(left, Property):
        place, number = _index_of(left.name, names), _number(right)
        if number is not None:
            return _property_and_number(place, holds, number, _kind(right))
        if is_equality and isinstance(right, Literal) and isinstance(right.value, str):
            return _property_is(place, right.value)
    compare = _order_of(_kind(left), _kind(right), are_equal=is_equality)
    sides = _closure(left, names), _closure(right, names)
    return _equality(*sides, compare) if is_equality else _ordering(*sides, compare, holds)


def _property_is(place: int, text: str) -> Condition:
    def equals(values: Values) -> bool | None:
        value = values[place]
        return None if value is None else value == text

    return equals


def _property_and_number(place: int, holds: Callable[[float, float], bool], number: float, kind: Kind) -> Condition:
    read = READERS[kind]
    if kind is Kind.DOUBLE:

        def compare_doubles(values: Values) -> bool | None:
            value = values[place]
            return None if value is None else holds(order_doubles(read(value), number), 0)

        return compare_doubles

    def compare(values: Values) -> bool | None:
        value = values[place]
        return None if value is None else holds(read(value), number)

    return compare


_Order: TypeAlias = Callable[[Value, Value], int]


def _equality(left: Closure, right: Closure, compare: _Order) -> Condition:
    def equals(values: Values) -> bool | None:
        left_value, right_value = left(values), right(values)
        if left_value is None:
            return True if right_value is None else None
        return right_value is not None and compare(left_value, right_value) == 0

    return equals


def _ordering(left: Closure, right: Closure, compare: _Order, holds: Callable[[float, float], bool]) -> Condition:
    def ordered(values: Values) -> bool | None:
        left_value = left(values)
        if left_value is None:
            return None
        right_value = right(values)
        return None if right_value is None else holds(compare(left_value, right_value), 0)

    return ordered


def _order_of(left: Kind, right: Kind, *, are_equal: bool) -> _Order:
    """Return how two values of these kinds are compared. Neither value may be null."""
    if Kind.BOOLEAN in {left, right} and not {left, right}.isdisjoint(NUMBERS):
        return lambda _mine, _others: -1
    if left is right is Kind.STRING and not are_equal:
        return lambda left_value, right_value: order_doubles(
            read_double(str(left_value)), read_double(str(right_value))
        )
    if left in READERS and right is Kind.STRING:
        read = READERS[left]
        return lambda left_value, right_value: order(_as_number(left_value), read(str(right_value)))
    if left is Kind.STRING and right in READERS:
        read = READERS[right]
        return lambda left_value, right_value: order(read(str(left_value)), _as_number(right_value))
    if left in NUMBERS:
        return lambda left_value, right_value: order(_as_number(left_value), _as_number(right_value))
    if left is Kind.STRING and right is Kind.BOOLEAN:
        return lambda left_value, right_value: 0 if read_boolean(str(left_value)) is right_value else 1
    if left is Kind.BOOLEAN and right is Kind.STRING:
        # Unlike here, RocketMQ's evaluation ends in an exception, so that nothing matches and no client gets an error.
        return lambda left_value, right_value: 0 if read_boolean(str(right_value)) is left_value else 1
    return lambda left_value, right_value: 0 if left_value == right_value else 1


def _as_number(value: Value) -> float:
    return value if isinstance(value, int | float) else 0
