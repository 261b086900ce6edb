"""Consumer offsets: (group, topic) -> queue id -> offset, with a digest and copy-on-write captures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer, Key, RecentCommits, Remembered
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash, mix
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices


class CommitOffsets(msgspec.Struct, frozen=True):
    """Consumer offsets as (group, topic, queue id, offset), stored as they are, in this order.

    `by` names the committer of each row by its place in `committers`, -1 if nobody said who it was; both are empty in
    what versions wrote that did not tell.
    """

    offsets: tuple[tuple[str, str, int, int], ...]
    committers: tuple[Committer, ...] = ()
    by: tuple[int, ...] = ()


class DeleteOffsets(msgspec.Struct, frozen=True):
    """Forget what the (group, topic) pairs have committed."""

    pairs: tuple[tuple[str, str], ...]


OFFSET_COMMANDS: Final[Kinds] = {20: CommitOffsets, 21: DeleteOffsets}


class OffsetFrame(msgspec.Struct, frozen=True, tag="offsets"):
    """Offsets as (group, topic, {queue id: offset}), and for each row who committed of late, as (queue id, offset,
    committer). Without those a version wrote the frame that did not remember.
    """

    rows: list[tuple[str, str, dict[int, int]]]
    recent: list[list[Remembered]] | None = None


class _Row:
    """The offsets of one group on one topic.  A row whose epoch is over belongs to a capture and is not changed."""

    __slots__ = ("epoch", "key_hash", "offsets")

    def __init__(self, epoch: int, key_hash: int, offsets: dict[int, int]) -> None:
        self.epoch = epoch
        self.key_hash = key_hash
        self.offsets = offsets

    def digest(self) -> int:
        return sum(mix(mix(self.key_hash, queue_id), offset) for queue_id, offset in self.offsets.items())


class OffsetTable(Table):
    """What consumer groups have committed.

    `is_pop_queue` tells whether a group pops a queue: what it commits there is what it has acknowledged, and a consumer
    that commits says nothing. `is_reset` tells whether a queue is reset and no consumer has seen it: what one commits
    there rests on what it read before.
    `recent` remembers who committed of late, by this replica's clock; the digest leaves it out.
    `digest` is the order-independent digest of the table.  `capture` takes time per (group, topic) pair, not per queue:
    later commits copy the rows that they touch.
    """

    __slots__ = ("_applied", "_epoch", "_rows", "digest", "is_pop_queue", "is_reset", "recent")

    digest: int

    frames = (OffsetFrame,)

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}
        self._epoch = 0
        self._applied: list[CommitOffsets | Key] = []
        """Commits of a batch, and the queues whose committers are forgotten, in the log's order."""
        self.recent = RecentCommits()
        self.is_pop_queue: Callable[[str, str, int], bool] = _nobody_pops
        self.is_reset: Callable[[Key], bool] = _nobody_resets
        self.digest = 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case CommitOffsets(offsets=offsets):
                void = False
                for group, topic, queue_id, offset in offsets:
                    if self.is_reset((group, topic, queue_id)):
                        void = True
                    elif not self.is_pop_queue(group, topic, queue_id):
                        self.commit(group, topic, queue_id, offset)
                self._applied.append(self._without_reset(command) if void else command)
            case DeleteOffsets(pairs=pairs):
                for group, topic in pairs:
                    self.remove(group, topic)

    def _without_reset(self, command: CommitOffsets) -> CommitOffsets:
        """A command without the commits that had no effect: none of them tells that a later one is late."""
        by = command.by or (-1,) * len(command.offsets)
        kept = [(row, number) for row, number in zip(command.offsets, by, strict=False) if not self.is_reset(row[:3])]
        return CommitOffsets(tuple(row for row, _ in kept), command.committers, tuple(number for _, number in kept))

    def batch_applied(self, now: Callable[[], float]) -> None:
        """See `Table.batch_applied`: who made the commits is remembered for a while."""
        if not self._applied:
            return
        applied, self._applied = self._applied, []
        for one in applied:
            if isinstance(one, CommitOffsets):
                self.recent.learn(one.offsets, one.committers, one.by, now())
            else:
                self.recent.forget(one)

    def forget_committers(self, key: Key) -> None:
        """Who committed in a queue so far says nothing of what comes; a later commit of the same batch does."""
        self._applied.append(key)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None."""
        row = self._rows.get((group, topic))
        return None if row is None else row.offsets.get(queue_id)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """All committed offsets of a group on a topic, by queue id."""
        row = self._rows.get((group, topic))
        return {} if row is None else row.offsets

    def pairs(self) -> list[tuple[str, str]]:
        """The (group, topic) pairs that have offsets."""
        return list(self._rows)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset, higher or lower than the one before."""
        key = (group, topic)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(self._epoch, item_hash("offset", group, topic), {})
        elif row.epoch != self._epoch:
            row = self._rows[key] = _Row(self._epoch, row.key_hash, dict(row.offsets))
        queue_hash = mix(row.key_hash, queue_id)
        before = row.offsets.get(queue_id)
        removed = 0 if before is None else mix(queue_hash, before)
        row.offsets[queue_id] = offset
        self.digest = (self.digest - removed + mix(queue_hash, offset)) & MASK

    def remove(self, group: str, topic: str) -> None:
        """Forget the offsets of a group on a topic; none is no error."""
        row = self._rows.pop((group, topic), None)
        if row is not None:
            self.digest = (self.digest - row.digest()) & MASK

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """A group is gone: forget its offsets, if asked."""
        if not clean_offsets:
            return
        for key in [key for key in self._rows if key[0] == group]:
            self.remove(*key)

    def on_topic_deleted(self, topic: str) -> None:
        """A topic is gone: forget all groups' offsets on it."""
        for key in [key for key in self._rows if key[1] == topic]:
            self.remove(*key)

    def capture(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """The table as it is now; later changes leave the captured mappings alone."""
        self._epoch += 1
        return [(key, row.offsets) for key, row in self._rows.items()]

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        recent = self.recent.capture(now)

        def frame(rows: list[tuple[tuple[str, str], Mapping[int, int]]]) -> OffsetFrame:
            return OffsetFrame(
                [(group, topic, dict(values)) for (group, topic), values in rows],
                [recent.get(pair, []) for pair, _ in rows],
            )

        return {"offsets": map(frame, in_slices(self.capture()))}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        match frame:
            case OffsetFrame(rows=rows, recent=recent):
                for group, topic, offsets in rows:
                    for queue_id, offset in offsets.items():
                        self.commit(group, topic, queue_id, offset)
                if recent is None:
                    self.recent.unknown_until = now + LATE_COMMIT_S
                    return
                for (group, topic, _), remembered in zip(rows, recent, strict=False):
                    self.recent.restore(group, topic, remembered, now)


def _nobody_pops(_group: str, _topic: str, _queue_id: int) -> bool:
    return False


def _nobody_resets(_key: Key) -> bool:
    return False


OFFSETS: Final = TableKey("offsets", OffsetTable)
