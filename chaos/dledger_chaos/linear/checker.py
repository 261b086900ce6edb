"""Is there an order in which these operations could have happened one at a time?

The search of Wing and Gong ("Testing and verifying concurrent objects", 1993) with Lowe's memory of configurations that
led nowhere ("Testing for linearizability", 2017): it walks the calls and returns in the order of time, takes the first
call whose answer fits as the next operation, and goes back when it meets a return whose operation it has not taken. A
configuration is the set of operations taken and the state they lead to; none is visited twice.

An operation whose end nobody saw has a call and no return: it may be taken at any later time, or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .calls import Call
from .models import Model

STEP_LIMIT: Final = 1_000_000
"""Steps of the search for one key, a few seconds; what is not decided by then is unknown."""


@dataclass(frozen=True, slots=True)
class Linearity:
    """The result of a search that took `steps` steps.

    `order` is the longest order found, complete if valid. If invalid, none of `stuck` can come next; they overlap, and
    the first of them has returned.
    """

    result: Literal["valid", "invalid", "unknown"]
    steps: int
    order: Sequence[Call] = ()
    stuck: Sequence[Call] = ()


def check_linearizable(calls: Sequence[Call], model: Model, *, step_limit: int = STEP_LIMIT) -> Linearity:
    """Search for an order. Unknown if `step_limit` steps find none and do not rule it out."""
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
                # At the same moment a call comes before a return: the two overlap, which says less.
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
                return Linearity("unknown", steps, self._named(best))
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
                    self._take(number)
                    entry = self.next[0]
                else:
                    entry = self.next[entry]
                continue
            if len(order) > len(best) or not stuck:
                best, stuck = order.copy(), self._overlapping(entry)
            if not order:
                return Linearity("invalid", steps, self._named(best), stuck)
            number = order.pop()
            taken, self.state = undo.pop()
            self._give_back(number)
            entry = self.next[2 * number + 1]
        return Linearity("valid", steps, self._named(order))

    def _take(self, number: int) -> None:
        """Remove an operation from the list."""
        self._unlink(2 * number + 1)
        if self.calls[number].returned is not None:
            self._unlink(2 * number + 2)
            self.returns_left -= 1

    def _give_back(self, number: int) -> None:
        """Undo `_take`; the last operation taken is given back first."""
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

    def _overlapping(self, end: int) -> list[Call]:
        """The operation that returns at `end`, and the others that were called before."""
        numbers = [end // 2 - 1]
        entry = self.next[0]
        while entry != end:
            if entry % 2 and entry // 2 not in numbers:
                numbers.append(entry // 2)
            entry = self.next[entry]
        return self._named(numbers)

    def _named(self, numbers: Sequence[int]) -> list[Call]:
        return [self.calls[number] for number in numbers]
