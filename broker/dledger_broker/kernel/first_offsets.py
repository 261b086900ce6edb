"""Offline check of first offsets: a queue must begin no later than its first record in the kept log.

A trim searches a queue's file for the first offset that it keeps. Earlier versions had no stamps in these files, and
did not notice a rotten index unit. One rotten unit could raise the first offset on all replicas. The messages below
that offset are still in the log, but no consumer gets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dledger.statemachine import CommittedEntry
from dledger.store.disk import Disk
from dledger.store.segments import segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.verify import VerifyReport, inspect
from dledger.types import EntryKind
from dledger_broker.kernel.applying_records import scan_entry
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.snapshot import decode_state
from dledger_broker.kernel.state import BrokerState, registry_of
from dledger_broker.kernel.tables import Changes
from dledger_broker.views.units import UNIT_BYTES

_HEADER_BYTES = 48
_Starts: TypeAlias = dict[int, int]
"""Offset of a queue's first record in each segment that has any, by the position at which the segment starts."""


@dataclass(frozen=True, slots=True)
class HiddenMessages:
    """Messages that the log keeps below the first offset of their queue, `first`. They begin at offset `kept`."""

    topic: str
    queue_id: int
    kept: int
    first: int

    def __str__(self) -> str:
        return (
            f"queue {self.topic}/{self.queue_id} begins at offset {self.first}, and the log keeps its messages from"
            f" {self.kept} on: {self.first - self.kept} are hidden from consumers. A trim of an earlier version"
            " believed a rotten file; copy this directory before retention takes them"
        )


@dataclass(slots=True)
class _Fold:
    """Result of applying the log up to some entry: the state, and where each queue's records begin in each segment."""

    state: BrokerState
    starts: dict[QueueState, _Starts] = field(default_factory=dict)


def find_hidden(report: VerifyReport, features: Sequence[Replicated], disk: Disk) -> list[HiddenMessages]:
    """Return the hidden messages in the committed part of a log. `report` must say that the log verifies. Blocks.

    Raises `CorruptionError` for a state that this version cannot read, and `IdentityError`.
    """
    directory, segment_bytes, commit_index = report.directory, report.segment_bytes, report.commit_index
    first_position = report.first_position
    fold = _Fold(_first_state(features, disk, first_position))
    commands = registry_of(features)
    for entry, segment in _entries(directory, disk, segment_bytes, commit_index):
        for queue, end_offset, units in scan_entry(fold.state.topic_table, entry):
            queue.next_offset = end_offset
            first = end_offset - len(units) // UNIT_BYTES
            fold.starts.setdefault(queue, {}).setdefault(segment, first)
        if len(entry.commands):
            changes = Changes(fold.state.tables)
            fold.state.apply(entry, changes, commands)
        fold.state.batch_applied(lambda: 0.0)
    return list(_hidden(fold, first_position))


def _hidden(fold: _Fold, first_position: int) -> Iterator[HiddenMessages]:
    kept_from = max(first_position, fold.state.trims.before)
    for queue in fold.state.topic_table.queues():
        starts = fold.starts.get(queue, {})
        kept = min((offset for segment, offset in starts.items() if segment >= kept_from), default=queue.first_offset)
        if kept < queue.first_offset:
            yield HiddenMessages(queue.topic, queue.queue_id, kept, queue.first_offset)


def _first_state(features: Sequence[Replicated], disk: Disk, position: int) -> BrokerState:
    """Return the state before the first kept entry, from the snapshot at its position if it exists."""
    snapshots = SnapshotStore.open_readonly(disk)
    base = next((meta for meta in snapshots.list() if meta.position == position), None)
    return BrokerState(features) if base is None else decode_state(snapshots.read_chunks(base), 0.0, features)


def _entries(directory: str, disk: Disk, segment_bytes: int, commit_index: int) -> Iterator[tuple[CommittedEntry, int]]:
    """Yield the committed entries with records and commands, each with the position at which its segment starts."""
    segment, file = -1, None
    try:
        for meta in inspect(directory, disk=disk):
            if meta.index > commit_index:
                return
            start = meta.position - meta.position % segment_bytes
            if start != segment:
                if file is not None:
                    file.close()
                segment, file = start, disk.open(segment_path(start))
            if meta.kind == EntryKind.GROUP and file is not None:
                body = file.pread(meta.size - _HEADER_BYTES, meta.position - start + _HEADER_BYTES)
                records = len(body) - meta.channel
                yield CommittedEntry(meta.index, meta.term, meta.position, body[:records], body[records:]), start
    finally:
        if file is not None:
            file.close()
