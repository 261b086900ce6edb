"""A history that cannot be linearized, cut down to what shows it.

Every cut keeps the verdict honest: it only takes away what could have helped to convict, never what could have excused.

1. What was called after the last needed return cannot matter; what had not returned by then loses its answer.
2. A read changes nothing, so that a history stays linearizable without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .calls import UNKNOWN, Call
from .checker import STEP_LIMIT, check_linearizable
from .models import Model


def shortest(calls: Sequence[Call], model: Model, *, step_limit: int = STEP_LIMIT) -> list[Call]:
    """The calls that are left; all of them if the history is not invalid."""

    def invalid(some: Sequence[Call]) -> bool:
        return check_linearizable(some, model, step_limit=step_limit).result == "invalid"

    left = sorted(calls, key=lambda call: call.called)
    if not invalid(left):
        return left
    # Once a prefix is invalid, every longer one is: bisection finds the shortest.
    returns = sorted(call.returned for call in left if call.returned is not None)
    low, high = 0, len(returns) - 1
    while low < high:
        middle = (low + high) // 2
        if invalid(_until(left, returns[middle])):
            high = middle
        else:
            low = middle + 1
    left = _until(left, returns[low])
    for call in [call for call in left if call.f == "read"]:
        without = [other for other in left if other is not call]
        if invalid(without):
            left = without
    return left


def _until(calls: Sequence[Call], moment: int) -> list[Call]:
    """What was known at a moment."""
    return [
        call if call.returned is not None and call.returned <= moment else replace(call, returned=None, answer=UNKNOWN)
        for call in calls
        if call.called <= moment
    ]
