"""Table of resets: where groups are to go on, until a consumer has seen it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer, Key
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, FindTable, Frame, Table, TableKey, in_slices

NAME: Final = "resets"
"""Name of the feature, which is never another one: it is recorded when it is activated."""


class ResetRow(NamedTuple):
    """One queue, and where the group goes on; of no topic but the one that was made at this position."""

    topic: str
    created_position: int
    queue_id: int
    offset: int


class ResetOffsets(msgspec.Struct, frozen=True):
    """Have a group go on elsewhere in these queues; until a consumer has seen that nobody commits there."""

    group: str
    rows: tuple[ResetRow, ...]


class SeeReset(msgspec.Struct, frozen=True):
    """A consumer has seen a reset: `number` tells it from later ones of the queue."""

    group: str
    topic: str
    queue_id: int
    number: int
    by: Committer


RESET_COMMANDS: Final[Kinds] = {53: ResetOffsets, 54: SeeReset}


class ResetFrame(msgspec.Struct, frozen=True, tag="resets"):
    """Resets that nobody has seen, as (queue, offset, number)."""

    rows: list[tuple[Key, int, int]]


class SeenFrame(msgspec.Struct, frozen=True, tag="seen-resets"):
    """Resets that were seen of late, as (queue, number, who saw it)."""

    rows: list[tuple[Key, int, Committer]]


class Pending(NamedTuple):
    """A reset that no consumer has seen."""

    offset: int
    number: int


class Seen(NamedTuple):
    """A reset that a consumer has seen; `at` is a time of the event loop's clock."""

    number: int
    by: Committer
    at: float


class ResetTable(Table):
    """All resets. `on_reset` is told, on every node, the queues that a batch of entries has reset.

    Who saw a reset is remembered for `LATE_COMMIT_S` by each replica's clock, and the digest leaves it out.
    """

    __slots__ = ("_new", "_offsets", "_seen", "_seen_now", "_topics", "digest", "on_reset", "pending")

    digest: int

    frames = (ResetFrame, SeenFrame)

    def __init__(self) -> None:
        self.pending: dict[Key, Pending] = {}
        self._seen: OrderedDict[Key, Seen] = OrderedDict()
        self._seen_now: list[tuple[Key, int, Committer]] = []
        self._new: list[Key] = []
        self.on_reset: Callable[[set[Key]], None] | None = None
        self.digest = 0

    def meet(self, find: FindTable) -> None:
        """See `Table.meet`."""
        self._topics = find.topics
        self._offsets = find.table(OFFSETS)
        self._offsets.is_reset = self.pending.__contains__

    def seen(self, key: Key, now: float) -> Seen | None:
        """The last reset of a queue, if it was seen of late."""
        seen = self._seen.get(key)
        return None if seen is None or now - seen.at > LATE_COMMIT_S else seen

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = changes
        match command:
            case ResetOffsets(group=group, rows=rows):
                for row in rows:
                    topic = self._topics.get(row.topic)
                    if topic is not None and topic.created_position == row.created_position:
                        # A trim that was in flight when this was asked for may have been applied before it.
                        queue = topic.queues.get(row.queue_id)
                        offset = row.offset if queue is None else max(row.offset, queue.first_offset)
                        self._reset((group, row.topic, row.queue_id), Pending(offset, entry.index))
            case SeeReset():
                self._see(command)

    def _reset(self, key: Key, pending: Pending) -> None:
        self._offsets.commit(*key, pending.offset)
        self._offsets.forget_committers(key)
        self._put(key, pending)
        self._seen.pop(key, None)
        self._new.append(key)

    def _see(self, command: SeeReset) -> None:
        key = (command.group, command.topic, command.queue_id)
        pending = self.pending.get(key)
        if pending is not None and pending.number == command.number:
            self._remove(key)
            self._seen_now.append((key, command.number, command.by))

    def batch_applied(self, now: Callable[[], float]) -> None:
        """See `Table.batch_applied`: notes when this replica has applied that a reset was seen."""
        seen, self._seen_now = self._seen_now, []
        for key, number, by in seen:
            self._note(key, Seen(number, by, now()))
        new, self._new = set(self._new), []
        if new and self.on_reset is not None:
            self.on_reset(new)

    def _note(self, key: Key, seen: Seen) -> None:
        while self._seen and seen.at - next(iter(self._seen.values())).at > LATE_COMMIT_S:
            self._seen.popitem(last=False)
        self._seen[key] = seen
        self._seen.move_to_end(key)

    # ---------------------------------------------------------------- what others do

    def on_queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """See `Table.on_queue_trimmed`: nobody can pull where a reset points, so it points at the first kept message.

        Else a consumer would be sent to the reset's offset by one answer and away from it by the next, for ever.
        """
        for key, pending in list(self.pending.items()):
            if key[1:] == (topic, queue_id) and pending.offset < first_offset:
                self._put(key, Pending(first_offset, pending.number))

    def on_topic_deleted(self, topic: str) -> None:
        """See `Table.on_topic_deleted`."""
        self._drop(key for key in [*self.pending, *self._seen] if key[1] == topic)

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """See `Table.on_group_deleted`: without its offsets the group begins as one that is new."""
        if clean_offsets:
            self._drop(key for key in [*self.pending, *self._seen] if key[0] == group)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._remove(key)
            self._seen.pop(key, None)

    def _put(self, key: Key, pending: Pending) -> None:
        self._remove(key)
        self.pending[key] = pending
        self.digest = (self.digest + _hash(key, pending)) & MASK

    def _remove(self, key: Key) -> None:
        pending = self.pending.pop(key, None)
        if pending is not None:
            self.digest = (self.digest - _hash(key, pending)) & MASK

    # ---------------------------------------------------------------- snapshots

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        pending = [(key, *reset) for key, reset in self.pending.items()]
        seen = [(key, one.number, one.by) for key, one in self._seen.items() if now - one.at <= LATE_COMMIT_S]
        frames: dict[str, Iterable[Frame]] = {}
        if pending:
            frames["resets"] = map(ResetFrame, in_slices(pending))
        if seen:
            frames["seen-resets"] = map(SeenFrame, in_slices(seen))
        return frames

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        match frame:
            case ResetFrame(rows=rows):
                for key, offset, number in rows:
                    self._put(key, Pending(offset, number))
            case SeenFrame(rows=seen):
                for key, number, by in seen:
                    self._note(key, Seen(number, by, now))


RESETS: Final = TableKey("resets", ResetTable)


def _hash(key: Key, pending: Pending) -> int:
    return item_hash("reset", *key, *pending)
