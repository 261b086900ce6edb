"""Time index of a node: the messages that are due next, derived from their commands (`views.timeindex`)."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.environment import Environment
from dledger_broker.features.delay.commands import (
    DELAY_COMMANDS,
    AddTimers,
    TimerRow,
    TimerRows,
)
from dledger_broker.features.delay.table import STRETCH_BYTES, TIMERS
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge
from dledger_broker.kernel.state import BrokerState
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Counts, Key, RowChanges


class RowsOfTimers:
    """Source of the rows in commands 33 to 37; implements `dledger_broker.views.timerows.RowSource`."""

    stretch_bytes = STRETCH_BYTES

    def __init__(self, machine: BrokerMachine) -> None:
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    def decode(self, kind: int, payload: bytes | memoryview) -> RowChanges | None:
        """Return the rows that a command adds or ends; None if it is about something else."""
        command = DELAY_COMMANDS.get(kind)
        if command is None or not issubclass(command, TimerRows):
            return None
        rows = TimerRows.unpack(payload)
        if command is AddTimers:
            return RowChanges(added=rows)
        return RowChanges(removed=[row[:2] for row in rows])

    def lowest(self) -> int | None:
        """Return where the lowest stretch with pending rows begins; None if no rows are pending."""
        return self._table.lowest

    def pending(self) -> Counts:
        """Return the pending counters of all stretches in the applied state."""
        return dict(self._table.stretches())


class TimerIndex:
    """Time index of delayed messages; implements `dledger_broker.kernel.feature.FeatureView`.

    `rows` is the index itself.
    """

    def __init__(self, machine: BrokerMachine, env: Environment) -> None:
        source = RowsOfTimers(machine)
        self.rows = TimeIndex(machine.databases, env, machine.log_reader, machine, source)
        machine.on_state(self._listen)
        machine.add_view(self)

    @property
    def gauges(self) -> Sequence[Gauge]:
        """Return gauges about the progress of the index and its agreement with the state."""
        rows, follower = self.rows, self.rows.follower
        return (
            Gauge("time_index_lag_bytes", "Bytes of the log that the time index lacks", lambda: rows.lag_bytes),
            Gauge("time_index_tail_rows", "Rows that the file of the time index lacks", lambda: rows.tail_rows),
            Gauge(
                "time_index_mismatches",
                "Times that the time index did not agree with the state",
                lambda: follower.mismatches,
            ),
            Gauge(
                "time_index_alarms",
                "Times that even a new time index did not agree with the state: see the log",
                lambda: follower.alarms,
            ),
        )

    def _listen(self, state: BrokerState) -> None:
        self._table = table = state.table(TIMERS)
        table.listener = self._applied
        table.on_ended = self.rows.drop_below

    def _applied(self, added: Sequence[TimerRow], removed: Sequence[Key], end: int) -> None:
        self.rows.applied(added, removed, end)

    def restored(self, position: int) -> None:
        """Start over from a new state, as of a log position."""
        self.rows.restored(position)
        if self._table.ended_below:
            self.rows.drop_below(self._table.ended_below)

    def start(self, incarnation: str) -> None:
        """Start to follow the log, in the data directory's incarnation."""
        self.rows.follower.incarnation = incarnation
        self.rows.follower.start()

    def abandon(self) -> None:
        """Do nothing more: the log has failed."""
        self.rows.follower.abandon()

    async def close(self) -> None:
        """Make the index durable, and stop. The node is still running."""
        await self.rows.follower.close()
