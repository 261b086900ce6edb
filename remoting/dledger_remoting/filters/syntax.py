"""The tree of an SQL92 expression.

`depth` is the number of nodes on the longest path from a node to a leaf. The parser limits it, because trees are walked
by recursion.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    """Kind of a literal.

    The integer kinds are separate, because a string is read as the kind that it is compared with.
    """

    NULL = "null"
    BOOLEAN = "boolean"
    INT32 = "32-bit integer"
    INT64 = "64-bit integer"
    DOUBLE = "double"
    STRING = "string"


NUMBERS = frozenset({Kind.INT32, Kind.INT64, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    kind: Kind
    value: bool | int | float | str | None
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a message's property: a string, or null if the message lacks the property."""

    name: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Negation:
    """`- operand`: a number if the operand is one, else null."""

    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT operand`."""

    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class And:
    """`a AND b AND c`."""

    operands: tuple[Node, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Or:
    """`a OR b OR c`."""

    operands: tuple[Node, ...]
    depth: int


class Operator(Enum):
    """Operators that compare two operands."""

    EQUAL = "="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left operator right`. The parser turns `<>` into a `Not` of an equality, and `BETWEEN` into two comparisons."""

    operator: Operator
    left: Node
    right: Node
    depth: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """`operand IS NULL`."""

    operand: Node
    depth: int


@dataclass(frozen=True, slots=True)
class In:
    """`name IN ('a', 'b')`, or `NOT IN`."""

    name: str
    values: frozenset[str]
    negated: bool
    depth: int = 2


class Search(Enum):
    """Searches for a text in another text, by the place where it must be."""

    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Match:
    """`operand CONTAINS 'text'`, or `NOT CONTAINS`, and so on."""

    search: Search
    operand: Node
    text: str
    negated: bool
    depth: int


Node: TypeAlias = Literal | Property | Negation | Not | And | Or | Comparison | IsNull | In | Match
Boolean: TypeAlias = Not | And | Or | Comparison | IsNull | In | Match


def is_boolean(node: Node) -> bool:
    """Return whether a node's value is true, false or null for every message."""
    return isinstance(node, Boolean) or (isinstance(node, Literal) and node.kind in {Kind.BOOLEAN, Kind.NULL})
