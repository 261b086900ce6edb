"""The tree of an SQL92 expression.

`depth` is the number of nodes from one to its farthest leaf, which the parser limits: a tree is walked by recursion.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

import msgspec


class Kind(Enum):
    """What a literal is; integers are distinguished because a text is read as the type of what it is compared with."""

    NULL = "null"
    BOOLEAN = "boolean"
    INT32 = "32-bit integer"
    INT64 = "64-bit integer"
    DOUBLE = "double"
    STRING = "string"


NUMBERS = frozenset({Kind.INT32, Kind.INT64, Kind.DOUBLE})


class Literal(msgspec.Struct, frozen=True):
    """A constant."""

    kind: Kind
    value: bool | int | float | str | None
    depth: int = 1


class Property(msgspec.Struct, frozen=True):
    """The value of a message's property, a string, or null if it has none of this name."""

    name: str
    depth: int = 1


class Negation(msgspec.Struct, frozen=True):
    """`- operand`: a number if the operand is one, else null."""

    operand: Node
    depth: int


class Not(msgspec.Struct, frozen=True):
    """`NOT operand`."""

    operand: Node
    depth: int


class And(msgspec.Struct, frozen=True):
    """`a AND b AND c`."""

    operands: tuple[Node, ...]
    depth: int


class Or(msgspec.Struct, frozen=True):
    """`a OR b OR c`."""

    operands: tuple[Node, ...]
    depth: int


class Operator(Enum):
    """How two operands are compared."""

    EQUAL = "="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="


class Comparison(msgspec.Struct, frozen=True):
    """`left operator right`; a `<>` is a `Not` of an equality, `BETWEEN` two comparisons."""

    operator: Operator
    left: Node
    right: Node
    depth: int


class IsNull(msgspec.Struct, frozen=True):
    """`operand IS NULL`."""

    operand: Node
    depth: int


class In(msgspec.Struct, frozen=True):
    """`name IN ('a', 'b')`, or `NOT IN`."""

    name: str
    values: frozenset[str]
    negated: bool
    depth: int = 2


class Search(Enum):
    """Where a text is looked for in another one."""

    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"


class Match(msgspec.Struct, frozen=True):
    """`operand CONTAINS 'text'`, or `NOT CONTAINS`, and so on."""

    search: Search
    operand: Node
    text: str
    negated: bool
    depth: int


Node: TypeAlias = Literal | Property | Negation | Not | And | Or | Comparison | IsNull | In | Match
Boolean: TypeAlias = Not | And | Or | Comparison | IsNull | In | Match


def is_boolean(node: Node) -> bool:
    """True if a node's value is true, false or null, whatever a message holds."""
    return isinstance(node, Boolean) or (isinstance(node, Literal) and node.kind in {Kind.BOOLEAN, Kind.NULL})
