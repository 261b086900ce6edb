"""Transactions on one node: routes of the requests, gauges, and the position from which on the log is needed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from dledger_broker.features.sending.send import Halves
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.features.transactions.checks import CheckBacks
from dledger_broker.features.transactions.ends import HalfEnds
from dledger_broker.features.transactions.listing import HalfListing
from dledger_broker.features.transactions.resuming import HalfResumption
from dledger_broker.features.transactions.sends import HalfSends
from dledger_broker.features.transactions.table import HALVES
from dledger_broker.features.transactions.units import HalfUnits
from dledger_broker.kernel import rights
from dledger_broker.kernel.earlier_logs import nobody_has_more
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.codes import RequestCode
from dledger_remoting.hotpath import SendV2Fields

_logger: Final = logging.getLogger(__name__)


class Transactions(Part, Halves):
    """Transactions on one node; see the package."""

    def __init__(
        self,
        machine: BrokerMachine,
        clock: GroupClock,
        sends: HalfSends,
        units: HalfUnits,
        ends: HalfEnds,
        checks: CheckBacks,
        resumption: HalfResumption,
        listing: HalfListing,
    ) -> None:
        self._machine = machine
        self._sends = sends
        self._units = units
        self._ends = ends
        self._checks = checks
        self._resumption = resumption
        self._listing = listing
        machine.on_state(self._keep_table)
        clock.add_dependent(lambda: bool(self._table.open))

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.END_TRANSACTION: Route(
                self._ends.handle, Needs.LEADER, CHANGES, rights=(rights.later("that of the half", Action.PUB),)
            ),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: Route(self._resumption.handle, Needs.LEADER, CHANGES),
            RequestCode.LIST_HALVES: Route(
                self._listing.handle, Needs.CONFIRMED_LEADER, NO_EFFECT, rights=(rights.cluster(Action.GET),)
            ),
        }

    @property
    def jobs(self) -> Sequence[Job]:
        return (self._checks,)

    def close(self) -> None:
        self._checks.close()
        self._ends.close()
        self._units.close()

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge("open_halves", "Transactions that are neither committed nor rolled back", self._open),
            Gauge(
                "lost_halves",
                "Transactions lost because the log was trimmed on a full disk, or no node has their part of it any "
                "more, or the half topic was deleted",
                self._lost,
            ),
        )

    def _open(self) -> int:
        return len(self._table.open)

    def _lost(self) -> int:
        return self._table.lost

    @property
    def needs_from(self) -> int | None:
        """Position from which on the log is needed, because open halves are read again.

        Halves below the beginning of every node's log are lost, and the next trim ends them.
        """
        log, lowest = self._machine.log, self._table.lowest
        if lowest is None or lowest >= log.first_position or not nobody_has_more(log):
            return lowest
        return next((half for half in self._table.open if half >= log.first_position), None)

    def trims_below(self, position: int) -> None:
        lost = [half for half in self._table.open if half < position]
        if lost:
            is_kept = lost[-1] >= self._machine.log.first_position
            reason = "the disk is too full" if is_kept else "no node has this part of the log any more"
            _logger.warning("event=halves_lost position=%d halves=%d reason=%r", position, len(lost), reason)

    def take(
        self, request: Request, fields: SendV2Fields, properties: bytes, target: SendTarget, queue_id: int
    ) -> None:
        """Store a half, as `sending.send.Halves` says."""
        self._sends.take(request, fields, properties, target, queue_id)
