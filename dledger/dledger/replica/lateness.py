"""Measure of how long the event loop keeps its callers waiting: how late its timers fire.

A long turn of the loop, or a process that gets no core, delays every timer that is due meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from dledger.environment import Environment
from dledger.replica.status import LoopLateness

BOUNDS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds in seconds by which late timers are counted.

A turn should take a few ms; from 0.5 s on elections may fail.
"""


class TimedLoop:
    """Sets timers and counts how late they fire."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._late_s = 0.0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Set a timer as `Environment.call_later` does, and count its lateness."""
        due = self._environment.now() + delay_s

        def fire() -> None:
            self._count(self._environment.now() - due)
            callback()

        self._environment.call_later(delay_s, fire)

    def lateness(self) -> LoopLateness:
        """Return the counts since the start."""
        return LoopLateness(list(accumulate(self._counts)), self._late_s)

    def _count(self, late_s: float) -> None:
        late_s = max(late_s, 0.0)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self._late_s += late_s
