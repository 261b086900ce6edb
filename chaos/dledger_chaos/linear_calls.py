"""Operations of a run's history as the search of `linear` takes them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from .history import Operation
from .linear import UNKNOWN, Call

_CALLS: Final = frozenset({"read", "write", "cas", "append", "create", "delete"})
_ANSWERS: Final = {"cas": "swapped", "append": "place"}
"""Where an operation's answer stands in its extras."""


def call_of(operation: Operation) -> Call | None:
    """An operation as the linearizability checker takes it; None if it is of another kind, certainly had no effect, or
    nobody saw what it read.
    """
    if operation.f not in _CALLS:
        return None
    if operation.outcome == "fail" or (operation.outcome == "info" and operation.f == "read"):
        return None
    f = "write" if operation.f in {"create", "delete"} else operation.f
    argument = None if f == "read" else _hashable(operation.value)
    if operation.outcome == "info":
        return Call(operation.id, f, argument, UNKNOWN, operation.invoke_ns, None)
    answer = operation.value if operation.f == "read" else operation.extras.get(_ANSWERS.get(operation.f, ""))
    return Call(operation.id, f, argument, _hashable(answer), operation.invoke_ns, operation.complete_ns)


def _hashable(value: object) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    assert isinstance(value, Hashable)
    return value
