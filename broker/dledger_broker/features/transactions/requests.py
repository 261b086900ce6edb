"""A node's part in transactions: its requests, what it shows, and from where on it needs the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.features.transactions.checks import CheckBacks
from dledger_broker.features.transactions.ends import HalfEnds
from dledger_broker.features.transactions.resuming import HalfResumption
from dledger_broker.features.transactions.sends import HalfSends
from dledger_broker.features.transactions.table import HALVES
from dledger_broker.features.transactions.units import HalfUnits
from dledger_broker.kernel import rights
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.hotpath import SendV2Fields

_logger: Final = logging.getLogger(__name__)


class Transactions(Part):
    """See the feature."""

    def __init__(
        self,
        machine: BrokerMachine,
        clock: GroupClock,
        sends: HalfSends,
        units: HalfUnits,
        ends: HalfEnds,
        checks: CheckBacks,
        resumption: HalfResumption,
    ) -> None:
        self._sends = sends
        self._units = units
        self._ends = ends
        self._checks = checks
        self._resumption = resumption
        machine.on_state(self._keep_table)
        clock.needed_by(lambda: bool(self._table.open))

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        return {
            RequestCode.END_TRANSACTION: Route(
                self._ends.handle, Needs.LEADER, CHANGES, rights=(rights.later("that of the half", Action.PUB),)
            ),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: Route(self._resumption.handle, Needs.LEADER, CHANGES),
        }

    @property
    def jobs(self) -> Sequence[Job]:
        """See `Part.jobs`."""
        return (self._checks,)

    def close(self) -> None:
        """See `Part.close`."""
        self._checks.close()
        self._ends.close()
        self._units.close()

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (
            Gauge("open_halves", "Transactions that are neither committed nor rolled back", self._open),
            Gauge("lost_halves", "Transactions that ended because a full disk had the log trimmed", self._lost),
        )

    def _open(self) -> int:
        return len(self._table.open)

    def _lost(self) -> int:
        return self._table.lost

    @property
    def needs_from(self) -> int | None:
        """See `Part.needs_from`: open halves are read again."""
        return self._table.lowest

    def overridden(self, position: int) -> None:
        """See `Part.overridden`."""
        lost = sum(half < position for half in self._table.open)
        _logger.warning("event=halves_lost position=%d halves=%d reason='the disk is too full'", position, lost)

    def take(
        self, request: Request, fields: SendV2Fields, properties: bytes, target: SendTarget, queue_id: int
    ) -> None:
        """See `sending.send.Halves`."""
        self._sends.take(request, fields, properties, target, queue_id)
