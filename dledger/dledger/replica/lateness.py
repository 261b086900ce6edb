"""Measure of how long the event loop keeps its callers waiting: how late its timers fire.

A turn of the loop that takes long, or a process that gets no core, makes every timer late that falls into it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final

from dledger.environment import Environment
from dledger.replica.status import LoopLateness

BOUNDS_S: Final = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds that timers are counted by: a turn should take a few ms, and half a second begins to cost elections."""


class TimedLoop:
    """Sets timers and counts how late they fire."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._late_s = 0.0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """See `Environment.call_later`."""
        due = self._environment.now() + delay_s

        def fire() -> None:
            self._count(self._environment.now() - due)
            callback()

        self._environment.call_later(delay_s, fire)

    def lateness(self) -> LoopLateness:
        """What was counted since the start."""
        return LoopLateness(list(accumulate(self._counts)), self._late_s)

    def _count(self, late_s: float) -> None:
        late_s = max(late_s, 0.0)
        self._counts[bisect_left(BOUNDS_S, late_s)] += 1
        self._late_s += late_s
