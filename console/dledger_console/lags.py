"""Lags of consumer groups over the last hour, in messages and in seconds, in memory and bounded."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import msgspec

from dledger_admin.operations.consumer_groups import Lag

LAG_SECONDS: Final = 30.0
"""Interval between two samples of a group's lag."""
MAX_LAG_SAMPLES: Final = 120
"""Maximum number of samples of a group: an hour."""
MAX_LAG_GROUPS: Final = 200
"""Maximum number of groups with a history. The group that was noted the longest ago loses its own."""


class Lags(msgspec.Struct, frozen=True):
    """Lags of a group, the oldest first, a sample each `seconds_each`. An unknown lag in seconds is left out."""

    messages: list[float] = []
    seconds: list[float] = []
    seconds_each: float = LAG_SECONDS


class LagHistory:
    """Recorder of lags. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._groups: OrderedDict[str, tuple[float, deque[Lag]]] = OrderedDict()

    def note(self, group: str, lag: Lag) -> None:
        """Remember the lag of a group, unless its last sample is younger than the interval."""
        sampled_at, samples = self._groups.pop(group, (float("-inf"), deque[Lag](maxlen=MAX_LAG_SAMPLES)))
        if self._clock() - sampled_at >= LAG_SECONDS:
            sampled_at = self._clock()
            samples.append(lag)
        self._groups[group] = sampled_at, samples
        while len(self._groups) > MAX_LAG_GROUPS:
            self._groups.popitem(last=False)

    def of(self, group: str) -> Lags:
        """Return the lags of a group."""
        _, samples = self._groups.get(group, (0.0, deque[Lag]()))
        return Lags(
            [float(lag.messages) for lag in samples], [lag.seconds for lag in samples if lag.seconds is not None]
        )
