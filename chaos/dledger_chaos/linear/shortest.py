"""Shortest form of a history that cannot be linearized.

Every step only removes constraints. If the shorter history cannot be linearized, the whole history cannot either.

1. The history is cut after a return. Calls that begin later are removed, and calls that return later lose their
   answers. The earliest cut is kept whose history cannot be linearized.
2. Each read is removed without which the history still cannot be linearized. A read changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .calls import UNKNOWN, Call
from .checker import STEP_LIMIT, check_linearizable
from .models import Model


def shortest(calls: Sequence[Call], model: Model, *, step_limit: int = STEP_LIMIT) -> list[Call]:
    """Return the calls of the shortest form, or all calls if the history can be linearized or is undecided."""

    def is_invalid(candidate: Sequence[Call]) -> bool:
        return check_linearizable(candidate, model, step_limit=step_limit).result == "invalid"

    left = sorted(calls, key=lambda call: call.called)
    if not is_invalid(left):
        return left
    # If a prefix is invalid, every longer prefix is. So bisection finds the shortest.
    returns = sorted(call.returned for call in left if call.returned is not None)
    low, high = 0, len(returns) - 1
    while low < high:
        middle = (low + high) // 2
        if is_invalid(_cut_at(left, returns[middle])):
            high = middle
        else:
            low = middle + 1
    left = _cut_at(left, returns[low])
    for call in [call for call in left if call.f == "read"]:
        without = [other for other in left if other is not call]
        if is_invalid(without):
            left = without
    return left


def _cut_at(calls: Sequence[Call], moment: int) -> list[Call]:
    """Return the calls that began by a time. Calls that returned later lose their answers."""
    return [
        call if call.returned is not None and call.returned <= moment else replace(call, returned=None, answer=UNKNOWN)
        for call in calls
        if call.called <= moment
    ]
