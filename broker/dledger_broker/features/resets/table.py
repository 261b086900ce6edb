"""Table of resets: offsets at which groups have to continue, until a consumer has seen the reset."""

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
"""Name of the feature. It must never change, because the activation of the feature is recorded under this name."""


class ResetRow(NamedTuple):
    """Queue and the offset at which the group continues. The row counts only for the topic created at
    `created_position`.
    """

    topic: str
    created_position: int
    queue_id: int
    offset: int


class ResetOffsets(msgspec.Struct, frozen=True):
    """Command that resets a group in these queues.

    Until a consumer has seen the reset of a queue, no commit counts there.
    """

    group: str
    rows: tuple[ResetRow, ...]


class SeeReset(msgspec.Struct, frozen=True):
    """Command that notes that a consumer has seen a reset. `number` distinguishes the reset from later resets of the
    queue.
    """

    group: str
    topic: str
    queue_id: int
    number: int
    by: Committer


RESET_COMMANDS: Final[Kinds] = {53: ResetOffsets, 54: SeeReset}


class ResetFrame(msgspec.Struct, frozen=True, tag="resets"):
    """Snapshot frame of resets that no consumer has seen: (queue, offset, number)."""

    rows: list[tuple[Key, int, int]]


class SeenFrame(msgspec.Struct, frozen=True, tag="seen-resets"):
    """Snapshot frame of resets that were seen recently: (queue, number, committer that saw it)."""

    rows: list[tuple[Key, int, Committer]]


class Pending(NamedTuple):
    """Reset that no consumer has seen."""

    offset: int
    number: int


class Seen(NamedTuple):
    """Reset that a consumer has seen. `at` is a time of the event loop's clock."""

    number: int
    by: Committer
    at: float


class ResetTable(Table):
    """Table of all resets. `on_reset` is called, on every node, with the queues that a batch of entries has reset.

    The committer that saw a reset is remembered for `LATE_COMMIT_S` by each replica's clock. The digest leaves it out.
    """

    __slots__ = ("_new", "_of_queue", "_offsets", "_seen", "_seen_now", "_topics", "digest", "on_reset", "pending")

    digest: int

    frames = (ResetFrame, SeenFrame)

    def __init__(self) -> None:
        self.pending: dict[Key, Pending] = {}
        self._of_queue: dict[tuple[str, int], dict[Key, None]] = {}
        """Pending resets of all groups, by topic and queue id, because a trim checks each of its queues."""
        self._seen: OrderedDict[Key, Seen] = OrderedDict()
        self._seen_now: list[tuple[Key, int, Committer]] = []
        self._new: list[Key] = []
        self.on_reset: Callable[[set[Key]], None] | None = None
        self.digest = 0

    def meet(self, find: FindTable) -> None:
        self._topics = find.topics
        self._offsets = find.table(OFFSETS)
        self._offsets.is_reset = self.pending.__contains__

    def seen(self, key: Key, now: float) -> Seen | None:
        """Return the last reset of a queue, if it was seen recently."""
        seen = self._seen.get(key)
        return None if seen is None or now - seen.at > LATE_COMMIT_S else seen

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = changes
        match command:
            case ResetOffsets(group=group, rows=rows):
                for row in rows:
                    topic = self._topics.get(row.topic)
                    if topic is not None and topic.created_position == row.created_position:
                        # A trim that was in flight when the reset was requested may have been applied before it.
                        queue = topic.queues.get(row.queue_id)
                        offset = row.offset if queue is None else max(row.offset, queue.first_offset)
                        self._reset((group, row.topic, row.queue_id), Pending(offset, entry.index))
            case SeeReset():
                self._apply_sighting(command)

    def _reset(self, key: Key, pending: Pending) -> None:
        self._offsets.commit(*key, pending.offset)
        self._offsets.forget_committers(key)
        self._put(key, pending)
        self._seen.pop(key, None)
        self._new.append(key)

    def _apply_sighting(self, command: SeeReset) -> None:
        key = (command.group, command.topic, command.queue_id)
        pending = self.pending.get(key)
        if pending is not None and pending.number == command.number:
            self._remove(key)
            self._seen_now.append((key, command.number, command.by))

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Note the time at which this replica applied the sighting of a reset, and report new resets."""
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

    # ---------------------------------------------------------------- changes by other tables

    def on_queue_trimmed(self, topic: str, queue_id: int, first_offset: int) -> None:
        """Move pending resets below the first kept message up to that message, because nobody can pull below it.

        Otherwise one answer would send a consumer to the reset's offset, and the next would send it back, for ever.
        """
        for key in list(self._of_queue.get((topic, queue_id), ())):
            pending = self.pending[key]
            if pending.offset < first_offset:
                self._put(key, Pending(first_offset, pending.number))

    def on_topic_deleted(self, topic: str) -> None:
        self._drop(key for key in [*self.pending, *self._seen] if key[1] == topic)

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """Drop the resets of a group that was deleted with its offsets. A new group of this name begins afresh."""
        if clean_offsets:
            self._drop(key for key in [*self.pending, *self._seen] if key[0] == group)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._remove(key)
            self._seen.pop(key, None)

    def _put(self, key: Key, pending: Pending) -> None:
        self._remove(key)
        self.pending[key] = pending
        self._of_queue.setdefault(key[1:], {})[key] = None
        self.digest = (self.digest + _hash(key, pending)) & MASK

    def _remove(self, key: Key) -> None:
        pending = self.pending.pop(key, None)
        if pending is not None:
            self.digest = (self.digest - _hash(key, pending)) & MASK
            others = self._of_queue[key[1:]]
            del others[key]
            if not others:
                del self._of_queue[key[1:]]

    # ---------------------------------------------------------------- snapshots

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        pending = [(key, *reset) for key, reset in self.pending.items()]
        seen = [
            (key, sighting.number, sighting.by)
            for key, sighting in self._seen.items()
            if now - sighting.at <= LATE_COMMIT_S
        ]
        frames: dict[str, Iterable[Frame]] = {}
        if pending:
            frames["resets"] = map(ResetFrame, in_slices(pending))
        if seen:
            frames["seen-resets"] = map(SeenFrame, in_slices(seen))
        return frames

    def restore_frame(self, frame: Frame, now: float) -> None:
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
