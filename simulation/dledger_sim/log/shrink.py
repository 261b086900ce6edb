"""Shrinker of failing cases: fewer faults, less time, fewer clients and operations, while the same promise breaks.

First the faults that the seed drew are stored in the case (`Case.strikes`). Thus the other faults keep their times when
a fault is left out. Then chunks of faults are left out: half of them, a quarter, … a single fault (Zeller's ddmin).
Finally time, clients and operations are cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from dledger_sim.log.cases import Case, Strike
from dledger_sim.log.run import WARM_UP_S, Outcome

MARGIN_S = 0.001


class _Shrinker:
    """Shrinker that tries shorter cases. `best` is the shortest case so far that still breaks the same promise."""

    def __init__(
        self,
        case: Case,
        promise: str,
        judge: Callable[[Case], Outcome],
        deadline: float,
        tell: Callable[[str], object],
    ) -> None:
        self.best = case
        self._promise = promise
        self._judge = judge
        self._deadline = deadline
        self._report = tell

    @property
    def is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def attempt(self, case: Case) -> bool:
        """Take a case if it breaks the same promise."""
        if self.is_late:
            return False
        outcome = self._judge(case)
        if outcome.violation is None or outcome.violation.promise != self._promise:
            return False
        self.best = case
        strikes = len(case.strikes or ())
        self._report(f"{strikes} faults, {case.seconds:.2f} s, {case.clients} clients, {case.operations} operations")
        return True

    def shorten_time(self, ended_at: float) -> None:
        """Stop at the failure, if that came before everything healed."""
        seconds = ended_at - WARM_UP_S + MARGIN_S
        if 0 < seconds < self.best.seconds:
            self.attempt(replace(self.best, seconds=seconds))

    def drop_strikes(self) -> None:
        """Leave out as many faults as possible."""
        size = max(1, len(self.best.strikes or ()) // 2)
        while size and self.best.strikes and not self.is_late:
            at, dropped = 0, False
            while at < len(self.best.strikes):
                fewer: Sequence[Strike] = (*self.best.strikes[:at], *self.best.strikes[at + size :])
                if self.attempt(replace(self.best, strikes=tuple(fewer))):
                    dropped = True
                else:
                    at += size
            if size == 1 and not dropped:
                break
            size = max(1, size // 2) if size > 1 or dropped else 0

    def cut_clients(self) -> None:
        """Try one client of each kind, then two."""
        for clients in (1, 2):
            if self.attempt(replace(self.best, clients=clients)):
                return

    def cut_operations(self, most: int) -> None:
        """Find the smallest number of operations by bisection."""
        low, high = 0, most
        while high - low > 1 and not self.is_late:
            middle = (low + high) // 2
            if self.attempt(replace(self.best, operations=middle)):
                high = middle
            else:
                low = middle


def shrink(
    case: Case, judge: Callable[[Case], Outcome], *, deadline: float, tell: Callable[[str], object]
) -> Case | None:
    """Return a shorter case that breaks the same promise, or None if this case breaks no promise.

    `deadline` is a moment of `time.monotonic`. `tell` is called with a line for every step.
    """
    outcome = judge(case)
    if outcome.violation is None:
        return None
    written = case if case.strikes is not None else replace(case, strikes=tuple(outcome.strikes))
    shrinker = _Shrinker(written, outcome.violation.promise, judge, deadline, tell)
    if not shrinker.attempt(written):
        return case  # the faults alone do not repeat the failure; only the seed does
    shrinker.shorten_time(outcome.seconds)
    shrinker.drop_strikes()
    shrinker.cut_clients()
    shrinker.cut_operations(sum(outcome.counts.values()))
    shrinker.shorten_time(judge(shrinker.best).seconds)
    shrinker.drop_strikes()
    return shrinker.best
