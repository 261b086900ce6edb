"""Leader job that deletes the pins whose leases have ended."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.table import DeletePins
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine

CHECK_PERIOD_S: Final = 10.0
"""Interval in seconds between two searches."""


class PinLeases:
    """Leader job that ends expired leases every ten seconds; implements `dledger_broker.kernel.jobs.Job`. The first
    search also waits that long: without a leader, readers could not renew their pins.
    """

    name: Final = "pin_leases"

    def __init__(self, machine: BrokerMachine, proposed: ProposedPins, env: Environment) -> None:
        self._machine = machine
        self._proposed = proposed
        self._env = env

    def run(self, handle: JobHandle) -> None:
        """Begin to search for expired leases."""
        handle.call_later(CHECK_PERIOD_S, partial(self._check_regularly, handle))

    def _check_regularly(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._check_regularly, handle))
        self.check(handle)

    def check(self, handle: JobHandle) -> None:
        """Delete the pins whose leases are over."""
        names = self._proposed.expired(self._env.wall_ms())
        if names and self._machine.understood_by_all(DeletePins):
            self._proposed.delete(names, _ignore_outcome, handle)


def _ignore_outcome(_error: object) -> None:
    """Ignore the outcome: the next search finds the pins that are still there."""
