"""Interface of the tables of the replicated state, and the key by which a feature's table is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, RawHandler
from dledger_broker.kernel.queues import TopicState

Frame: TypeAlias = msgspec.Struct
"""Some rows of a table, in a snapshot. Its tag is its kind, unique among all frames."""
ROWS_PER_FRAME: Final = 500
"""Number of rows encoded in one slice: well below a millisecond of work."""
Row = TypeVar("Row")


class Table:
    """One part of the state. A table inherits from this class and overrides only what it needs.

    Everything here is deterministic: no clock, no random number, no configuration, no name of a node.
    """

    __slots__ = ()

    frames: ClassVar[tuple[type[Frame], ...]] = ()
    """The types of its frames in a snapshot."""

    @property
    def digest(self) -> int:
        """The order-independent 64-bit digest of its content."""
        raise NotImplementedError

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """Apply one of its commands. `changes` receives what other tables and callbacks need to know."""
        raise NotImplementedError(type(command))

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """Apply the payload of its only `RawCommand`. Raises `CorruptionError` for a payload that does not fit."""
        raise NotImplementedError

    def raw_handler(self, command: type[Command]) -> RawHandler:
        """Return the handler for payloads of one of its `RawCommand`s. A table with several raw commands overrides
        this.
        """
        _ = command
        return self.apply_raw

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Note that entries which had been committed together were applied.

        A replica notes here times of its own clock, that of the event loop (`now`). No digest contains them.
        """

    def meet(self, find: FindTable) -> None:
        """Find the tables of other features that it needs. Called when the state is complete."""

    def on_topic_put(self, topic: TopicState) -> None:
        """Note that a topic was made, or has another configuration."""

    def on_queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """Note that the messages of a queue below an offset are gone."""

    def on_log_trimmed(self, before_position: int) -> None:
        """Note that the group has decided to trim the log below a position. Called with each command of a trim."""

    def on_topic_deleted(self, topic: str) -> None:
        """Note that a topic is gone, with its queues."""

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """Note that a consumer group is gone. With `clean_offsets`, its offsets are to go too."""

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """Return the table's frames by kind, as the table is at `now`, a time of the event loop's clock.

        The frames are made lazily. A table that equals an empty one returns none, so that nodes that do not know it can
        read the snapshot.
        """
        _ = now
        return {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """Restore the rows of a frame into a table that was empty before, at a time of the event loop's clock."""
        raise NotImplementedError(type(frame))

    def finish_restore(self) -> None:
        """Check the table once all frames of a snapshot are restored. Raises `CorruptionError` if these do not fit
        together.
        """


def in_slices(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each frame."""
    for begin in range(0, len(rows), ROWS_PER_FRAME):
        yield rows[begin : begin + ROWS_PER_FRAME]


T = TypeVar("T", bound=Table)
T_co = TypeVar("T_co", bound=Table, covariant=True)


@dataclass(frozen=True, eq=False)
class TableKey(Generic[T_co]):
    """The key of a feature's table in a state, and the function that makes an empty table."""

    name: str
    make: Callable[[], T_co]


class FindTable(Protocol):
    """Finder of tables of the same state."""

    @property
    def topics(self) -> Mapping[str, TopicState]:
        """All topics."""

    def table(self, key: TableKey[T]) -> T:
        """Return the table of a feature."""


class Changes:
    """Changes by the commands of some entries, besides changes of topics, which `TopicTable.version` counts.

    All `tables` are notified of a deletion at once, in their order.
    """

    __slots__ = ("_tables", "deleted_topics", "groups_changed", "members_changed")

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self.deleted_topics: list[TopicState] = []
        self.groups_changed = False
        self.members_changed = False

    def log_trimmed(self, before_position: int) -> None:
        """Notify all tables that the log below a position is being removed."""
        for table in self._tables:
            table.on_log_trimmed(before_position)

    def topic_put(self, topic: TopicState) -> None:
        """Notify all tables that a topic was made, or has another configuration."""
        for table in self._tables:
            table.on_topic_put(topic)

    def queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """Notify all tables that the first kept offset of a queue was raised."""
        for table in self._tables:
            table.on_queue_trimmed(topic, queue_id, first_offset)

    def topic_deleted(self, topic: TopicState) -> None:
        """Notify all tables that a topic was removed from its table."""
        self.deleted_topics.append(topic)
        for table in self._tables:
            table.on_topic_deleted(topic.config.topic_name)

    def group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """Notify all tables that a consumer group was removed from its table, or was not in it."""
        self.groups_changed = True
        for table in self._tables:
            table.on_group_deleted(group, clean_offsets=clean_offsets)
