"""Table of consumer offsets: (group, topic) -> queue id -> offset, with a digest and copy-on-write captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.offsets.recent_commits import LATE_COMMIT_S, Committer, Key, RecentCommits, Remembered
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash, mix
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices
from dledger_remoting.topics import is_system_group


class CommitOffsets(msgspec.Struct, frozen=True):
    """Command that stores consumer offsets, given as (group, topic, queue id, offset), in this order.

    `by` has, for each row, the committer's index in `committers`, or -1 if the committer is unknown. Both are empty in
    commands of versions that did not record committers.
    """

    offsets: tuple[tuple[str, str, int, int], ...]
    committers: tuple[Committer, ...] = ()
    by: tuple[int, ...] = ()


class DeleteOffsets(msgspec.Struct, frozen=True):
    """Command that forgets the committed offsets of the (group, topic) pairs."""

    pairs: tuple[tuple[str, str], ...]


OFFSET_COMMANDS: Final[Kinds] = {20: CommitOffsets, 21: DeleteOffsets}


class OffsetFrame(msgspec.Struct, frozen=True, tag="offsets"):
    """Snapshot frame with offsets as (group, topic, {queue id: offset}).

    `recent` has, for each row, the recent commits as (queue id, offset, committer). `recent` is None in frames of
    versions that did not remember committers.
    """

    rows: list[tuple[str, str, dict[int, int]]]
    recent: list[list[Remembered]] | None = None


class _Row:
    """Offsets of one group on one topic. A row of an earlier epoch belongs to a capture and is not changed."""

    __slots__ = ("epoch", "key_hash", "offsets")

    def __init__(self, epoch: int, key_hash: int, offsets: dict[int, int]) -> None:
        self.epoch = epoch
        self.key_hash = key_hash
        self.offsets = offsets

    def digest(self) -> int:
        return sum(mix(mix(self.key_hash, queue_id), offset) for queue_id, offset in self.offsets.items())


class OffsetTable(Table):
    """Table of the committed offsets of consumer groups.

    - `is_pop_queue` returns whether a group pops a queue. The offset there is how far the group has acknowledged, so
      commits of consumers are ignored.
    - `is_reset` returns whether a queue was reset and no consumer has seen the reset. Commits there are ignored,
      because they rest on messages read before the reset.
    - `recent` remembers recent committers, by this replica's clock. The digest leaves it out.
    - `system_groups` has the groups with offsets that exist without being created, each with its number of topics.
    - `digest` is the order-independent digest of the table.

    `capture` takes time per (group, topic) pair, not per queue: later commits copy the rows that they touch.
    """

    __slots__ = ("_applied", "_epoch", "_rows", "digest", "is_pop_queue", "is_reset", "recent", "system_groups")

    digest: int

    frames = (OffsetFrame,)

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Row] = {}
        self._epoch = 0
        self._applied: list[CommitOffsets | Key] = []
        """Commits of a batch, and the queues whose committers are to be forgotten, in the log's order."""
        self.recent = RecentCommits()
        self.system_groups: Counter[str] = Counter()
        self.is_pop_queue: Callable[[str, str, int], bool] = _is_no_pop_queue
        self.is_reset: Callable[[Key], bool] = _is_not_reset
        self.digest = 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
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
        """Return the command without the commits that had no effect.

        Those must not make a later commit count as late.
        """
        by = command.by or (-1,) * len(command.offsets)
        kept = [(row, number) for row, number in zip(command.offsets, by, strict=False) if not self.is_reset(row[:3])]
        return CommitOffsets(tuple(row for row, _ in kept), command.committers, tuple(number for _, number in kept))

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Remember for a while who made the commits of the batch."""
        if not self._applied:
            return
        applied, self._applied = self._applied, []
        for command in applied:
            if isinstance(command, CommitOffsets):
                self.recent.learn(command.offsets, command.committers, command.by, now())
            else:
                self.recent.forget(command)

    def forget_committers(self, key: Key) -> None:
        """Forget who committed in a queue so far. Later commits of the same batch are remembered."""
        self._applied.append(key)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset, or None."""
        row = self._rows.get((group, topic))
        return None if row is None else row.offsets.get(queue_id)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Return all committed offsets of a group on a topic, by queue id."""
        row = self._rows.get((group, topic))
        return {} if row is None else row.offsets

    def pairs(self) -> list[tuple[str, str]]:
        """Return the (group, topic) pairs that have offsets."""
        return list(self._rows)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset, lower or higher than the previous offset."""
        key = (group, topic)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(self._epoch, item_hash("offset", group, topic), {})
            if is_system_group(group):
                self.system_groups[group] += 1
        elif row.epoch != self._epoch:
            row = self._rows[key] = _Row(self._epoch, row.key_hash, dict(row.offsets))
        queue_hash = mix(row.key_hash, queue_id)
        before = row.offsets.get(queue_id)
        removed = 0 if before is None else mix(queue_hash, before)
        row.offsets[queue_id] = offset
        self.digest = (self.digest - removed + mix(queue_hash, offset)) & MASK

    def remove(self, group: str, topic: str) -> None:
        """Forget the offsets of a group on a topic, if there are any."""
        row = self._rows.pop((group, topic), None)
        if row is not None:
            self.digest = (self.digest - row.digest()) & MASK
            if is_system_group(group):
                self.system_groups[group] -= 1
                if not self.system_groups[group]:
                    del self.system_groups[group]

    def on_group_deleted(self, group: str, *, clean_offsets: bool) -> None:
        """Forget the offsets of a deleted group, if the deletion says so."""
        if not clean_offsets:
            return
        for key in [key for key in self._rows if key[0] == group]:
            self.remove(*key)

    def on_topic_deleted(self, topic: str) -> None:
        """Forget all groups' offsets on a deleted topic."""
        for key in [key for key in self._rows if key[1] == topic]:
            self.remove(*key)

    def capture(self) -> list[tuple[tuple[str, str], Mapping[int, int]]]:
        """Capture the table in its present state. Later changes leave the captured mappings alone."""
        self._epoch += 1
        return [(key, row.offsets) for key, row in self._rows.items()]

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        recent = self.recent.capture(now)

        def frame(rows: list[tuple[tuple[str, str], Mapping[int, int]]]) -> OffsetFrame:
            return OffsetFrame(
                [(group, topic, dict(values)) for (group, topic), values in rows],
                [recent.get(pair, []) for pair, _ in rows],
            )

        return {"offsets": map(frame, in_slices(self.capture()))}

    def restore_frame(self, frame: Frame, now: float) -> None:
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


def _is_no_pop_queue(_group: str, _topic: str, _queue_id: int) -> bool:
    return False


def _is_not_reset(_key: Key) -> bool:
    return False


OFFSETS: Final = TableKey("offsets", OffsetTable)
