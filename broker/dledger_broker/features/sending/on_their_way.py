"""Units of sends on their way to a majority: how many requests they hold, and the end of those that take too long."""

from __future__ import annotations

import math
from collections import deque
from typing import Final, Protocol

from dledger.environment import Cancellable, Environment
from dledger_remoting.errors import OutcomeUnknown, QuorumTimeout

MAX_UNIT_BYTES: Final = 512 << 10
"""Sends of one turn are staged at this size, so that a unit fits well into an entry."""
MAX_GATHERED_BYTES: Final = 256 << 10
"""Sends that are as large together are staged, however many are on their way."""
MAX_GATHER_S: Final = 0.001
"""No send waits longer for others, in seconds: where a majority takes long (a slow disk, a long link), waiting for it
would take a send almost twice as long.
"""
RECENT_S: Final = 0.01
"""Producers that were all answered have sent again by then, if they go on."""
SWEEP_S: Final = 0.1
"""A write that waits too long for a majority is noticed at most so late."""


class UnitOnItsWay(Protocol):
    """Sends that were staged together."""

    requests: int
    """How many."""
    deadline: float
    """When they are answered although no majority has them; a time of the environment's clock."""
    settled: bool
    """They were answered."""

    def fail(self, error: Exception) -> None:
        """Answer all of them with an error, unless they were answered."""


def waits_for_others(requests: int, size: int, on_their_way: int) -> bool:
    """Whether so many requests, of so many bytes, gather with others: while twice as many are on their way."""
    return 2 * requests < on_their_way and size < MAX_GATHERED_BYTES


class UnitsOnTheirWay:
    """The units of one kind of sends, in the order in which they were staged."""

    def __init__(self, env: Environment, quorum_timeout_ms: int) -> None:
        self.requests = 0
        """How many requests they hold."""
        self._env = env
        self._timeout_ms = quorum_timeout_ms
        self._units: deque[UnitOnItsWay] = deque()
        self._sweep: Cancellable | None = None
        self._staged_at = -math.inf

    @property
    def are_recent(self) -> bool:
        """Whether there are any, or were a moment ago."""
        return self.requests > 0 or self._env.now() - self._staged_at < RECENT_S

    def deadline(self) -> float:
        """That of a unit which is staged now."""
        self._staged_at = now = self._env.now()
        return now + self._timeout_ms / 1000

    def waited_s(self, deadline: float) -> float:
        """How long ago a unit with this deadline was staged."""
        return self._env.now() - deadline + self._timeout_ms / 1000

    def gather(self, requests: int, size: int) -> bool:
        """Whether so many requests, of so many bytes, wait for others: while twice as many are on their way."""
        return waits_for_others(requests, size, self.requests)

    def add(self, unit: UnitOnItsWay) -> None:
        """A unit is staged."""
        self._units.append(unit)
        self.requests += unit.requests
        if self._sweep is None:
            self._sweep = self._env.call_later(SWEEP_S, self._on_sweep)

    def let_go(self) -> None:
        """Forget units that were answered, so that their bodies do not stay in memory."""
        while self._units and self._units[0].settled:
            self._land()

    def fail_all(self, error: OutcomeUnknown) -> None:
        """Answer all of them, and look after none any more."""
        while self._units:
            self._land().fail(error)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _land(self) -> UnitOnItsWay:
        unit = self._units.popleft()
        self.requests -= unit.requests
        return unit

    def _on_sweep(self) -> None:
        """Report writes that have waited too long for a majority."""
        units, now = self._units, self._env.now()
        while units and (units[0].settled or units[0].deadline <= now):
            self._land().fail(
                QuorumTimeout(f"no majority stored the message within {self._timeout_ms} ms: it may be stored")
            )
        self._sweep = self._env.call_later(SWEEP_S, self._on_sweep) if units else None
