"""Units of sends on their way to a majority: counts their requests, and ends units that take too long."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol

from dledger.environment import Cancellable, Environment
from dledger_remoting.errors import OutcomeUnknown, QuorumTimeout

MAX_UNIT_BYTES: Final = 512 << 10
"""Size in bytes of a turn's sends at which they are staged, so that a unit fits well into an entry."""
MAX_GATHERED_BYTES: Final = 256 << 10
"""Size in bytes of gathered sends at which they are staged, however many are on their way."""
MAX_GATHER_S: Final = 0.001
"""Maximum time in seconds for which a send waits for further sends.

Where a majority takes long, because of a slow disk or a long link, waiting for it would take a send almost twice as
long.
"""
RECENT_S: Final = 0.01
"""Time in seconds within which active producers send again, after all of them were answered."""
SWEEP_S: Final = 0.1
"""Interval in seconds of the search for writes that wait too long for a majority."""


class UnitInFlight(Protocol):
    """Sends that were staged together."""

    requests: int
    """Number of the requests."""
    deadline: float
    """Time of the environment's clock at which they are answered even if no majority has them."""
    settled: bool
    """True if they were answered."""

    def fail(self, error: Exception) -> None:
        """Answer all of them with an error, unless they were answered."""


def waits_for_others(requests: int, size: int, in_flight: int) -> bool:
    """Return whether these requests wait for further requests. They do while twice as many are on their way."""
    return 2 * requests < in_flight and size < MAX_GATHERED_BYTES


class UnitsInFlight:
    """Units of one kind of sends, in the order of their staging."""

    def __init__(self, env: Environment, quorum_timeout_ms: int) -> None:
        self.requests = 0
        """Number of requests in the units."""
        self._env = env
        self._timeout_ms = quorum_timeout_ms
        self._units: deque[UnitInFlight] = deque()
        self._sweep: Cancellable | None = None
        self._staged_at = -math.inf

    @property
    def is_recent(self) -> bool:
        """True if a unit was staged a moment ago."""
        return self._env.now() - self._staged_at < RECENT_S

    def deadline(self) -> float:
        """Return the deadline of a unit that is staged now."""
        self._staged_at = now = self._env.now()
        return now + self._timeout_ms / 1000

    def gather(self, requests: int, size: int) -> bool:
        """Return whether these requests wait for further requests. They do while twice as many are on their way."""
        return waits_for_others(requests, size, self.requests)

    def add(self, unit: UnitInFlight) -> None:
        """Add a unit that is staged."""
        self._units.append(unit)
        self.requests += unit.requests
        if self._sweep is None:
            self._sweep = self._env.call_later(SWEEP_S, self._on_sweep)

    def drop_settled(self, deadline: float) -> float:
        """Forget the units that were answered, so that their bodies do not stay in memory.

        Return how long ago the unit with this deadline was staged, in seconds.
        """
        units = self._units
        while units and units[0].settled:
            self.requests -= units.popleft().requests
        return self._env.now() - deadline + self._timeout_ms / 1000

    def fail_all(self, error: OutcomeUnknown) -> None:
        """Answer all units with an error, and stop watching them."""
        while self._units:
            self._pop_oldest().fail(error)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _pop_oldest(self) -> UnitInFlight:
        unit = self._units.popleft()
        self.requests -= unit.requests
        return unit

    def _on_sweep(self) -> None:
        """Report writes that have waited too long for a majority."""
        units, now = self._units, self._env.now()
        while units and (units[0].settled or units[0].deadline <= now):
            self._pop_oldest().fail(
                QuorumTimeout(f"no majority stored the message within {self._timeout_ms} ms: it may be stored")
            )
        self._sweep = self._env.call_later(SWEEP_S, self._on_sweep) if units else None
