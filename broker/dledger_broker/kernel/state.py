"""The replicated state, joined from its tables. Only applied commands and records change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

from dledger.format import COMMAND_HEADER_BYTES, iter_commands, only_kind
from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.activation import ACTIVATION_COMMANDS, ActivationTable
from dledger_broker.kernel.commands import FIRST_KIND, Command, CommandRegistry, RawCommand, RawHandler
from dledger_broker.kernel.digest import MASK
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.group_time import GROUP_TIME_COMMANDS, GroupTimeTable
from dledger_broker.kernel.members import MEMBER_COMMANDS, MemberTable
from dledger_broker.kernel.tables import Changes, Table, TableKey
from dledger_broker.kernel.topics import TOPIC_COMMANDS, TopicTable
from dledger_broker.kernel.trims import TRIM_COMMANDS, Trims

T = TypeVar("T", bound=Table)

KERNEL_COMMANDS: Final = (TOPIC_COMMANDS, TRIM_COMMANDS, MEMBER_COMMANDS, ACTIVATION_COMMANDS, GROUP_TIME_COMMANDS)


def registry_of(features: Sequence[Replicated]) -> CommandRegistry:
    """Return a registry of every command that the kernel and these features understand."""
    return CommandRegistry(*KERNEL_COMMANDS, *(feature.commands for feature in features))


class BrokerState:
    """The kernel's tables and the tables of features, which are reached by their keys.

    Two replicas that applied the same entries have equal states and equal digests. `topics` and `topics_by_bytes` are
    the mappings of `topic_table`, for reading. `tables` are all tables, in the order in which they are notified of
    changes.
    """

    def __init__(self, features: Sequence[Replicated]) -> None:
        self.topic_table = TopicTable()
        self.topics = self.topic_table.by_name
        self.topics_by_bytes = self.topic_table.by_bytes
        self.trims = Trims(self.topic_table)
        self.members = MemberTable()
        self.activation = ActivationTable(features)
        self.group_time = GroupTimeTable()
        keys = [feature.table for feature in features if feature.table is not None]
        self._by_key = {key: key.make() for key in keys}
        kernel: Sequence[Table] = (self.topic_table, self.trims, self.members, self.activation, self.group_time)
        self.tables: Sequence[Table] = (*kernel, *self._by_key.values())
        self._told_of_batches = [table for table in self.tables if type(table).batch_applied is not Table.batch_applied]
        owners: list[tuple[Mapping[int, type[Command]], Table]] = [
            *zip(KERNEL_COMMANDS, kernel, strict=True),
            *((feature.commands, self._by_key[feature.table]) for feature in features if feature.table is not None),
        ]
        for table in self._by_key.values():
            table.meet(self)
        self._owners = {command: table for commands, table in owners for command in commands.values()}
        self._raw_handlers: Mapping[int, RawHandler] = {
            kind: table.raw_handler(command)
            for commands, table in owners
            for kind, command in commands.items()
            if issubclass(command, RawCommand)
        }

    def table(self, key: TableKey[T]) -> T:
        """Return a feature's table. Code that needs a table for each message looks it up once
        (`BrokerMachine.on_state`).
        """
        return cast(T, self._by_key[key])

    def apply(self, entry: CommittedEntry, changes: Changes, commands: CommandRegistry) -> None:
        """Apply an entry's commands in their order. Kinds below `FIRST_KIND` belong to the log and are skipped.

        Raises `CorruptionError` for a command that this version does not know.
        """
        handlers, only = self._raw_handlers, only_kind(entry.commands)
        if only is not None and only in handlers:  # a fast path: an ordinary entry has one raw command
            handlers[only](entry.commands[COMMAND_HEADER_BYTES:], entry)
            return
        for kind, payload in iter_commands(entry.commands):
            if kind < FIRST_KIND:
                continue
            if kind in handlers:
                handlers[kind](payload, entry)
                continue
            command = commands.decode(kind, payload)
            self._owners[type(command)].apply(command, entry, changes)

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Notify the tables that note times that entries which had been committed together were applied."""
        for table in self._told_of_batches:
            table.batch_applied(now)

    def digest(self) -> int:
        """Return the 64-bit digest of the state: the sum of the digests of its tables."""
        return sum(table.digest for table in self.tables) & MASK

    def finish_restore(self) -> None:
        """Notify every table that the whole state has been restored from a snapshot."""
        for table in self.tables:
            table.finish_restore()
