"""A node's part of due messages."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_broker.features.delay.table import TIMERS
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.state import BrokerState


class DueMessages(Part):
    """Shows what is pending."""

    def __init__(self, machine: BrokerMachine) -> None:
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (
            Gauge("timers_pending", "Messages that are not due yet", lambda: self._table.total.rows),
            Gauge("timer_bytes_pending", "Bytes of their records in the log", lambda: self._table.total.bytes),
        )
