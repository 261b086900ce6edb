"""The tree of an SQL92 expression.

`depth` is the number of nodes from one to its farthest leaf, which the parser limits: a tree is walked by recursion.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    """What a literal is; integers are distinguished because a text is read as the type of what it is compared with."""

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
    """The value of a message's property, a string, or null if it has none of this name."""

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
    """How two operands are compared."""

    EQUAL = "="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="
    LESS = "<"
    LESS_OR_EQUAL = "<="


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left operator right`; a `<>` is a `Not` of an equality, `BETWEEN` two comparisons."""

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
    """Where a text is looked for in another one."""

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
    """True if a node's value is true, false or null, whatever a message holds."""
    return isinstance(node, Boolean) or (isinstance(node, Literal) and node.kind in {Kind.BOOLEAN, Kind.NULL})
