"""Linearizability checker: searches for an order in which operations could have happened one at a time.

The search is that of Wing and Gong ("Testing and verifying concurrent objects", 1993). As in Lowe's work ("Testing for
linearizability", 2017) it remembers configurations that led nowhere. It walks the calls and returns in the order of
time. It takes the first call whose answer fits as the next operation. It goes back when it meets a return whose
operation it has not taken. A configuration is the set of taken operations and the state that they lead to. None is
visited twice.

An operation whose end nobody saw has a call and no return. It may be taken at any later time, or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .calls import Call
from .models import Model

STEP_LIMIT: Final = 1_000_000
"""Maximum number of steps of the search for one key, which take a few seconds. The result is unknown after that."""


@dataclass(frozen=True, slots=True)
class Linearity:
    """The result of a search that took `steps` steps.

    `order` is the longest order found; it is complete if the result is valid. If the result is invalid, no operation of
    `stuck` can come next. These operations overlap, and the first of them has returned.
    """

    result: Literal["valid", "invalid", "unknown"]
    steps: int
    order: Sequence[Call] = ()
    stuck: Sequence[Call] = ()


def check_linearizable(calls: Sequence[Call], model: Model, *, step_limit: int = STEP_LIMIT) -> Linearity:
    """Search for an order. The result is unknown if `step_limit` steps neither find an order nor exclude it."""
    return _Search(calls, model).run(step_limit)


class _Search:
    """Calls and returns as a linked list of numbered entries; entry 0 is the head.

    The entry of a call is `2 * number + 1`, of its return `2 * number + 2`.
    """

    def __init__(self, calls: Sequence[Call], model: Model) -> None:
        self.calls = calls
        self.step = model.step
        self.state = model.initial
        moments = []
        for number, call in enumerate(calls):
            moments.append((call.called, 0, 2 * number + 1))
            if call.returned is not None:
                # A call at the same time comes before a return. The two then overlap, which is the weaker claim.
                moments.append((call.returned, 1, 2 * number + 2))
        moments.sort()
        self.next = [0] * (2 * len(calls) + 1)
        self.previous = [0] * (2 * len(calls) + 1)
        before = 0
        for _, _, entry in moments:
            self.next[before], self.previous[entry] = entry, before
            before = entry
        self.returns_left = sum(call.returned is not None for call in calls)

    def run(self, step_limit: int) -> Linearity:
        taken, order, undo = 0, [], []
        best: list[int] = []
        visited = {(0, self.state)}
        entry = self.next[0]
        stuck: list[Call] = []
        steps = 0
        while self.returns_left:
            if steps >= step_limit:
                return Linearity("unknown", steps, self._get_calls(best))
            steps += 1
            if entry % 2:
                number = entry // 2
                state = self.step(self.state, self.calls[number])
                configuration = (taken | 1 << number, state)
                if state is not None and configuration not in visited:
                    visited.add(configuration)
                    undo.append((taken, self.state))
                    order.append(number)
                    taken, self.state = taken | 1 << number, state
                    self._remove_operation(number)
                    entry = self.next[0]
                else:
                    entry = self.next[entry]
                continue
            if len(order) > len(best) or not stuck:
                best, stuck = order.copy(), self._find_overlapping(entry)
            if not order:
                return Linearity("invalid", steps, self._get_calls(best), stuck)
            number = order.pop()
            taken, self.state = undo.pop()
            self._restore_operation(number)
            entry = self.next[2 * number + 1]
        return Linearity("valid", steps, self._get_calls(order))

    def _remove_operation(self, number: int) -> None:
        """Remove an operation from the list."""
        self._unlink(2 * number + 1)
        if self.calls[number].returned is not None:
            self._unlink(2 * number + 2)
            self.returns_left -= 1

    def _restore_operation(self, number: int) -> None:
        """Undo `_remove_operation`; the last operation taken is given back first."""
        if self.calls[number].returned is not None:
            self._relink(2 * number + 2)
            self.returns_left += 1
        self._relink(2 * number + 1)

    def _unlink(self, entry: int) -> None:
        before, after = self.previous[entry], self.next[entry]
        self.next[before] = after
        if after:
            self.previous[after] = before

    def _relink(self, entry: int) -> None:
        before, after = self.previous[entry], self.next[entry]
        self.next[before] = entry
        if after:
            self.previous[after] = entry

    def _find_overlapping(self, end: int) -> list[Call]:
        """Return the operation that returns at `end`, and all other operations that were called before `end`."""
        numbers = [end // 2 - 1]
        entry = self.next[0]
        while entry != end:
            if entry % 2 and entry // 2 not in numbers:
                numbers.append(entry // 2)
            entry = self.next[entry]
        return self._get_calls(numbers)

    def _get_calls(self, numbers: Sequence[int]) -> list[Call]:
        return [self.calls[number] for number in numbers]
