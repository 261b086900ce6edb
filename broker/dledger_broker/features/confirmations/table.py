"""Table of confirmations, which has no content of its own: they change the table of leases."""

from __future__ import annotations

from typing import Final

from dledger.statemachine import CommittedEntry
from dledger_broker.features.confirmations.commands import NAME, ConfirmLease
from dledger_broker.features.leases.table import LEASES, LeaseTable
from dledger_broker.features.pop.commands import PopQueueKey
from dledger_broker.features.pop.table import POPPED, PopTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.tables import Changes, FindTable, Table, TableKey


class ConfirmationTable(Table):
    """Table without content: it puts the deliveries of its command under a lease."""

    __slots__ = ("_leases", "_popped")

    digest: Final = 0

    def meet(self, find: FindTable) -> None:
        self._leases: LeaseTable = find.table(LEASES)
        self._popped: PopTable = find.table(POPPED)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case ConfirmLease():
                self._confirm(command)

    def _confirm(self, command: ConfirmLease) -> None:
        leased = 0
        for row in command.rows:
            key = PopQueueKey(command.group, row.topic, row.queue_id)
            leased += self._popped.confirm(key, row.created_position, row.pop_time_ms, command.client)
        self._leases.begin(command.client, leased, command.until_ms, command.length_ms)


CONFIRMED: Final = TableKey(NAME, ConfirmationTable)
