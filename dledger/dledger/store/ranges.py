"""The log as ranges for bulk readers: where to cut it, and raw entries between two positions.

Everything here may touch the disk and belongs on a worker thread.  Ranges end at a committed position, so that nothing
of them is ever truncated; what is trimmed meanwhile raises `TrimmedError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dledger.errors import CorruptionError, TrimmedError
from dledger.format import HEADER_BYTES
from dledger.store.log import LogStore
from dledger.types import EntryKind, EntryMeta

MAX_CUTS = 16_384
"""A plan has at most about so many; slices are larger than asked for beyond."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """Where the entry `index` starts; `previous_chain` is the chain crc of the entry before it."""

    position: int
    index: int
    previous_chain: int


class RecordSpan(NamedTuple):
    """Entries of one term: where the records of the first and of the last one that have any lie."""

    first_position: int
    last_position: int
    last_size: int


class EntryRun(NamedTuple):
    """Whole entries, and the position of what follows them, behind a blank if there is one."""

    data: bytes
    end: int


def find_cuts(log: LogStore, start: int, end: int, slice_bytes: int) -> list[LogCut]:
    """Cuts of [start, end): at the entry that holds `start`, then about every `slice_bytes` and at every segment.

    `end` is the end of an entry.
    """
    start = max(start, log.first_position)
    slice_bytes = max(slice_bytes, (end - start) // MAX_CUTS)
    cuts: list[LogCut] = []
    at = start
    while at < end:
        index = log.index_at(at)
        position = log.position_at(index)
        if cuts and position <= cuts[-1].position:  # one entry fills the slice
            index += 1
            position = log.position_at(index)
            if position >= end:
                break
        cuts.append(LogCut(position, index, _chain_before(log, index)))
        at = min(position + slice_bytes, _segment_end(log, position))
    return cuts


def _segment_end(log: LogStore, position: int) -> int:
    return position - position % log.segment_bytes + log.segment_bytes


def _chain_before(log: LogStore, index: int) -> int:
    if index == 0:
        return 0
    if index > log.first_index:
        return log.meta(index - 1).chain_crc
    for base in log.snapshots.list():
        if base.last_index == index - 1:
            return base.chain_crc
    raise CorruptionError(
        f"the chain crc before entry {index}, the first one kept, is not known: no snapshot ends there"
    )


def read_run(log: LogStore, start: int, end: int, max_bytes: int) -> EntryRun:
    """The whole entries of one segment from `start` on, at most `max_bytes`, but at least one.

    `start` is where an entry or a blank starts, `end` the end of an entry or of a segment.  Raises `ValueError` if
    `start` lies inside an entry, `TrimmedError`, `CorruptionError` where the bytes are known not to verify.
    """
    if start < log.first_position:
        raise TrimmedError(f"position {start} is below the first kept one, {log.first_position}")
    if start >= end:
        return EntryRun(b"", end)
    first = log.meta(log.index_at(start))
    if first.position != start:
        if start < first.end:
            raise ValueError(f"position {start} lies inside entry {first.index}, which starts at {first.position}")
        return EntryRun(b"", min(_segment_end(log, start), end))
    limit = min(start + max_bytes, end, _segment_end(log, start))
    last = log.meta(log.index_at(limit - 1))
    stop = last.end
    if last.end > limit and last.index > first.index:
        stop = last.position
        following = stop
    else:
        following = log.position_at(last.index + 1)
    return EntryRun(log.read(start, stop - start), min(following, end))


def record_spans(log: LogStore, start: int, end: int) -> list[RecordSpan]:
    """Where the records at both ends of each run of entries of one term lie, in the range [start, end) of a slice."""
    spans: list[RecordSpan] = []
    if start >= end:
        return spans
    first_index, last_index = log.index_at(start), log.index_at(end - 1)
    while first_index <= last_index:
        stop = _last_of_term(log, first_index, last_index)
        first = _first_with_records(log, range(first_index, stop + 1))
        if first is not None:
            last = _first_with_records(log, range(stop, first_index - 1, -1)) or first
            spans.append(RecordSpan(first.position + HEADER_BYTES, last.position + HEADER_BYTES, _record_bytes(last)))
        first_index = stop + 1
    return spans


def last_records(log: LogStore, start: int, end: int) -> list[bytes]:
    """What `record_spans` finds last: the records of the last entry with any, of each term in [start, end)."""
    return [log.read(span.last_position, span.last_size) for span in record_spans(log, start, end)]


def _last_of_term(log: LogStore, index: int, last_index: int) -> int:
    """The last index, up to `last_index`, of the term that entry `index` has: terms never go back."""
    term = log.term_at(index)
    low, high = index, last_index
    while low < high:
        middle = (low + high + 1) // 2
        if log.term_at(middle) == term:
            low = middle
        else:
            high = middle - 1
    return low


def _first_with_records(log: LogStore, indexes: range) -> EntryMeta | None:
    for index in indexes:
        meta = log.meta(index)
        if _record_bytes(meta):
            return meta
    return None


def _record_bytes(meta: EntryMeta) -> int:
    return meta.size - HEADER_BYTES - meta.channel if meta.kind == EntryKind.GROUP else 0
