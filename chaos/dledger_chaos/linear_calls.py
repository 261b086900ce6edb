"""Conversion of operations of a run's history into calls for the checker in `linear`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from .history import Operation
from .linear import UNKNOWN, Call

_CALL_FUNCTIONS: Final = frozenset({"read", "write", "cas", "append", "create", "delete"})
_ANSWER_EXTRAS: Final = {"cas": "swapped", "append": "place"}
"""Name of an operation's answer among its extras."""


def call_of(operation: Operation) -> Call | None:
    """Return an operation as a call for the linearizability checker.

    Return None if the operation is of another kind, certainly had no effect, or is a read of unknown outcome.
    """
    if operation.f not in _CALL_FUNCTIONS:
        return None
    if operation.outcome == "fail" or (operation.outcome == "info" and operation.f == "read"):
        return None
    f = "write" if operation.f in {"create", "delete"} else operation.f
    argument = None if f == "read" else _to_hashable(operation.value)
    if operation.outcome == "info":
        return Call(operation.id, f, argument, UNKNOWN, operation.invoke_ns, None)
    answer = operation.value if operation.f == "read" else operation.extras.get(_ANSWER_EXTRAS.get(operation.f, ""))
    return Call(operation.id, f, argument, _to_hashable(answer), operation.invoke_ns, operation.complete_ns)


def _to_hashable(value: object) -> Hashable:
    if isinstance(value, list):
        return tuple(map(_to_hashable, value))
    assert isinstance(value, Hashable)
    return value
