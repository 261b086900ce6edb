"""Job that stores reminders when they are due: the message, and the fact that it is stored, in one unit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import BusyError, LogFullError
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import FixedRows, NewRecord, Stored, Unknown
from tests.broker.toy.table import REMINDERS, ROW, STORED_KIND, Reminder

LOOK_S: Final = 0.1
NOBODY: Final = bytes(8)
"""Host of messages that no client has sent in this form."""


class RemindInTime:
    """Job that looks ten times a second; implements `dledger_broker.kernel.jobs.Job`.

    `_in_flight` is the overlay: reminders whose messages are staged and not applied. A reminder stays in it until its
    unit ends, also if the run ends first. A later run of this leader must not store again what an earlier run has
    staged.
    """

    name: Final = "reminders"

    def __init__(self, machine: BrokerMachine, env: Environment) -> None:
        self._machine = machine
        self._env = env
        self._in_flight: set[int] = set()
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(REMINDERS)

    def run(self, handle: JobHandle) -> None:
        """Look for due reminders, store them, and do so again after `LOOK_S`."""
        handle.call_later(LOOK_S, partial(self.run, handle))
        now_ms = self._env.wall_ms()
        due = [reminder for reminder in self._table.pending.values() if self._is_due(reminder, now_ms)]
        if due:
            self._store(handle, due)

    def _is_due(self, reminder: Reminder, now_ms: int) -> bool:
        """Return whether a reminder is due and can be stored.

        A topic whose deletion is in flight takes nothing, and its reminders are dropped with it.
        """
        waits = reminder.number not in self._in_flight and self._machine.topic(reminder.topic) is not None
        return waits and reminder.due_ms <= now_ms

    def _store(self, handle: JobHandle, due: Sequence[Reminder]) -> None:
        numbers = [reminder.number for reminder in due]
        records = [
            NewRecord(topic=reminder.topic, queue_id=0, body=reminder.body, born_ms=reminder.due_ms, born_host=NOBODY)
            for reminder in due
        ]

        def write_rows(payload: memoryview, positions: Sequence[int | None]) -> None:
            for place, (number, position) in enumerate(zip(numbers, positions, strict=True)):
                ROW.pack_into(payload, place * ROW.size, number, position or 0)

        def settled(_outcome: Stored | Unknown) -> None:
            self._in_flight.difference_update(numbers)

        rows = FixedRows(STORED_KIND, len(due) * ROW.size, write_rows)
        try:
            handle.write(records, [rows], done=settled)
        except (BusyError, LogFullError):
            return  # the next look finds them still pending
        self._in_flight.update(numbers)
