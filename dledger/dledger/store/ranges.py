"""Ranges of the log for bulk readers: where to cut the log, and raw entries between two positions.

Everything here may touch the disk and belongs on a worker thread. Ranges end at a committed position, so that they are
never truncated. If a range is trimmed meanwhile, `TrimmedError` is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dledger.errors import CorruptionError, TrimmedError
from dledger.format import HEADER_BYTES
from dledger.store.log import LogStore
from dledger.types import EntryKind, EntryMeta

MAX_CUTS = 16_384
"""Approximate maximum number of cuts in a plan. For larger ranges the slices are larger than requested."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """Start of the entry `index`. `previous_chain` is the chain crc of the entry before it."""

    position: int
    index: int
    previous_chain: int


class RecordSpan(NamedTuple):
    """Entries of one term: the positions of the first and the last entry's records, among the entries that have any."""

    first_position: int
    last_position: int
    last_size: int


class EntryRun(NamedTuple):
    """Whole entries, and the position of the next entry, behind a blank if there is one."""

    data: bytes
    end: int


def find_cuts(log: LogStore, start: int, end: int, slice_bytes: int) -> list[LogCut]:
    """Return the cuts of [start, end): at the entry with `start`, about every `slice_bytes`, and at every segment.

    `end` is the end of an entry.
    """
    start = max(start, log.first_position)
    slice_bytes = max(slice_bytes, (end - start) // MAX_CUTS)
    cuts: list[LogCut] = []
    next_cut = start
    while next_cut < end:
        index = log.index_at(next_cut)
        position = log.position_at(index)
        if cuts and position <= cuts[-1].position:  # one entry fills the slice
            index += 1
            position = log.position_at(index)
            if position >= end:
                break
        cuts.append(LogCut(position, index, _chain_before(log, index)))
        next_cut = min(position + slice_bytes, _segment_end(log, position))
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
    """Return the whole entries of one segment from `start` on: at most `max_bytes`, but at least one entry.

    `start` is where an entry or a blank starts; `end` is the end of an entry or of a segment. Raises `ValueError` if
    `start` lies inside an entry. Raises `TrimmedError`, or `CorruptionError` if the bytes are known not to verify.
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
        next_position = stop
    else:
        next_position = log.position_at(last.index + 1)
    return EntryRun(log.read(start, stop - start), min(next_position, end))


def record_spans(log: LogStore, start: int, end: int) -> list[RecordSpan]:
    """Return, for each run of entries of one term in [start, end), the positions of its first and last records."""
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
    """Return the records of the last entry that has any, for each term in [start, end)."""
    return [log.read(span.last_position, span.last_size) for span in record_spans(log, start, end)]


def _last_of_term(log: LogStore, index: int, last_index: int) -> int:
    """Return the last index, up to `last_index`, with the term of entry `index`. Terms never decrease."""
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
