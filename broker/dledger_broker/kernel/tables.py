"""Table of the replicated state: what the kernel asks of one, and the key by which a feature's table is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, RawHandler
from dledger_broker.kernel.queues import TopicState

Frame: TypeAlias = msgspec.Struct
"""Some rows of a table, in a snapshot; its tag is its kind, which no other frame has."""
ROWS_PER_FRAME: Final = 500
"""Rows encoded in one slice: well below a millisecond of work."""
Row = TypeVar("Row")


class Table:
    """One part of the state; a table inherits from this and says only what concerns it.

    All is deterministic: no clock, no random number, no configuration, no name of a node.
    """

    __slots__ = ()

    frames: ClassVar[tuple[type[Frame], ...]] = ()
    """What a snapshot has of it."""

    @property
    def digest(self) -> int:
        """The order-independent 64-bit digest of what is in it."""
        raise NotImplementedError

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """Apply one of its commands; `changes` is told what others need to know."""
        raise NotImplementedError(type(command))

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """Apply the payload of its one `RawCommand`; raises `CorruptionError` for one that does not fit."""
        raise NotImplementedError

    def raw_handler(self, command: type[Command]) -> RawHandler:
        """What applies payloads of a `RawCommand` of its own; a table that has several tells them apart here."""
        _ = command
        return self.apply_raw

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Entries were applied that had been committed together: the moment for what each replica notes by its own
        clock, that of the event loop (`now`), and what no digest has.
        """

    def meet(self, find: FindTable) -> None:
        """The state is put together: the moment to find the tables of other features that it has to do with."""

    def on_topic_put(self, topic: TopicState) -> None:
        """A topic was made, or has another configuration."""

    def on_queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """The messages of a queue below an offset are gone."""

    def on_log_trimmed(self, before_position: int) -> None:
        """The group has decided to trim the log below a position; told again with each command of a trim."""

    def on_topic_deleted(self, topic: str) -> None:
        """A topic is gone, with its queues."""

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """A consumer group is gone; its offsets are to go too if asked."""

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """Its frames by kind, as the table is now, a time of the event loop's clock; they are made when asked for.

        A table that equals an empty one has none, so that nodes that do not know it can read the snapshot.
        """
        _ = now
        return {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """Restore what a frame holds, at a time of the event loop's clock, in a table that was empty before."""
        raise NotImplementedError(type(frame))

    def finish_restore(self) -> None:
        """All that a snapshot has is restored. Raises `CorruptionError` if that does not fit together."""


def in_slices(rows: list[Row]) -> Iterator[list[Row]]:
    """The rows of each frame."""
    for begin in range(0, len(rows), ROWS_PER_FRAME):
        yield rows[begin : begin + ROWS_PER_FRAME]


T = TypeVar("T", bound=Table)
T_co = TypeVar("T_co", bound=Table, covariant=True)


@dataclass(frozen=True, eq=False)
class TableKey(Generic[T_co]):
    """The key of a feature's table in a state, and what makes an empty one."""

    name: str
    make: Callable[[], T_co]


class FindTable(Protocol):
    """Finds tables of the same state."""

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """All topics."""

    def table(self, key: TableKey[T]) -> T:
        """The table of a feature."""


class Changes:
    """What the commands of some entries changed, besides topics, which `TopicTable.version` counts.

    A deletion is told to all `tables` at once, in their order.
    """

    __slots__ = ("_tables", "deleted_topics", "groups_changed", "members_changed")

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self.deleted_topics: list[TopicState] = []
        self.groups_changed = False
        self.members_changed = False

    def log_trimmed(self, before_position: int) -> None:
        """The log goes below a position."""
        for table in self._tables:
            table.on_log_trimmed(before_position)

    def topic_put(self, topic: TopicState) -> None:
        """A topic was made, or has another configuration."""
        for table in self._tables:
            table.on_topic_put(topic)

    def queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """The first kept offset of a queue was raised."""
        for table in self._tables:
            table.on_queue_trimmed(topic, queue_id, first_offset)

    def topic_deleted(self, topic: TopicState) -> None:
        """A topic is out of its table."""
        self.deleted_topics.append(topic)
        for table in self._tables:
            table.on_topic_deleted(topic.config.topic_name)

    def group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """A consumer group is out of its table, or was not in it."""
        self.groups_changed = True
        for table in self._tables:
            table.on_group_deleted(group, clean_offsets=clean_offsets)
