"""Virtual time: events in the order of their moments.

Events of the same moment keep the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from dledger_sim.log.violation import Violation

SPIN_EVENTS = 1 << 14
SPIN_S = 0.4
"""`SPIN_EVENTS` events within `SPIN_S` seconds are no real work: messages answer each other without end."""


class Timer:
    """Scheduled call; `cancel` undoes it."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Drop the call. A call that was already made is not an error."""
        self.callback = None


def _nothing() -> None:
    """Do nothing. This is the current call before the first event."""


class Scheduler:
    """Queue of events. `now` is in seconds since the start of the run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self.current = Timer(_nothing)
        """Call that is being made."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._serial = 0
        self._spin_from = 0.0

    def after(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call in `delay_s` seconds."""
        return self.at(self.now + delay_s, callback)

    def at(self, moment: float, callback: Callable[[], None]) -> Timer:
        """Call at `moment`, or now if that has passed. Calls for the same moment keep their order."""
        timer = Timer(callback)
        self._serial = serial = self._serial + 1
        now = self.now
        heappush(self._heap, (max(now, moment), serial, timer))
        return timer

    def run_until(self, moment: float) -> None:
        """Run every event up to `moment`, and set the time to it."""
        heap = self._heap
        while heap and heap[0][0] <= moment:
            at, _, timer = heappop(heap)
            callback = timer.callback
            if callback is not None:
                self.now = at
                self.current = timer
                self.events += 1
                if not self.events % SPIN_EVENTS:
                    self._check_spin()
                callback()
        self.now = moment

    def _check_spin(self) -> None:
        if self.now - self._spin_from < SPIN_S:
            raise Violation("replicas do not keep each other busy", f"{SPIN_EVENTS} events within {SPIN_S} s")
        self._spin_from = self.now
