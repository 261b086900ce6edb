"""Job that ends leases: a leader gives up the pins that nobody has renewed."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.table import DeletePins
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine

CHECK_PERIOD_S: Final = 10.0


class PinLeases:
    """Looks every ten seconds; implements `dledger_broker.kernel.jobs.Job`.

    The first look comes as late as any: while there was no leader, readers could not renew what they need.
    """

    name: Final = "pin_leases"

    def __init__(self, machine: BrokerMachine, proposed: ProposedPins, env: Environment) -> None:
        self._machine = machine
        self._proposed = proposed
        self._env = env

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        handle.call_later(CHECK_PERIOD_S, partial(self._look, handle))

    def _look(self, handle: JobHandle) -> None:
        handle.call_later(CHECK_PERIOD_S, partial(self._look, handle))
        self.check(handle)

    def check(self, handle: JobHandle) -> None:
        """Give up the pins whose leases are over."""
        names = self._proposed.expired(self._env.wall_ms())
        if names and self._machine.understood_by_all(DeletePins):
            self._proposed.delete(names, _tried_again, handle)


def _tried_again(_error: object) -> None:
    """The next look finds what is still there."""
