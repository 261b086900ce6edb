"""Finds bit rot in closed segments, and heals corrupt ranges with a peer's bytes."""

from __future__ import annotations

from itertools import pairwise

from dledger.errors import CorruptionError, TrimmedError
from dledger.store.damage import CorruptRange, Damage
from dledger.store.index import UNIT_BYTES, IndexFiles
from dledger.store.scan import Collected, Cursor, scan_segment
from dledger.store.segments import Segment, SegmentTable
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta


class _Section:
    """Bytes of the log from `start` on, read as if they were the file of a segment."""

    def __init__(self, data: bytes, start: int, segment_start: int) -> None:
        self._data = data
        self._shift = segment_start - start

    def pread(self, size: int, offset: int) -> bytes:
        """As `dledger.store.disk.File.pread`."""
        at = offset + self._shift
        return self._data[at : at + size]


def repair(
    table: SegmentTable,
    index: IndexFiles,
    damaged: CorruptRange,
    data: bytes,
    before: Cursor,
    behind: EntryMeta | None,
    last_chain: int,
) -> None:
    """Replace a corrupt range by `data`, durably, with its index units.

    `before` stands at the range's start (chain None: nothing before it is known); `behind` is the entry behind the
    range, or None at the log's end, where the chain must come to `last_chain`.  Raises `CorruptionError` and changes
    nothing unless every byte verifies and the chain joins both ends.
    """
    if len(data) != damaged.end - damaged.start:
        raise CorruptionError(f"{len(data)} bytes do not cover the corrupt range {damaged}")
    cursor = before
    verified: list[tuple[Segment, int, int, bytes]] = []
    for segment in table.overlapping(damaged.start, damaged.end):
        end = segment.start + table.segment_bytes
        first_index = cursor.index
        segment_first = first_index if cursor.position == segment.start else segment.first_index
        into = Collected()
        section = _Section(data, damaged.start, segment.start)
        fault = scan_segment(section, segment.start, end, cursor, into, stop=damaged.end)
        if fault is not None:
            raise CorruptionError(f"the bytes offered for {damaged} do not verify: {fault.reason}")
        verified.append((segment, segment_first, first_index - segment_first, b"".join(into.units)))
    if (cursor.position, cursor.index) != (damaged.end, damaged.next_index):
        raise CorruptionError(f"the bytes offered for {damaged} end at {cursor.position} with index {cursor.index}")
    _check_join(table, cursor, behind, last_chain)
    for segment, segment_first, slot, units in verified:
        begin = max(segment.start, damaged.start)
        end = min(segment.start + table.segment_bytes, damaged.end)
        file = segment.acquire()
        try:
            file.pwrite(data[begin - damaged.start : end - damaged.start], begin - segment.start)
            file.datasync()
        finally:
            segment.release()
        segment.first_index = segment_first
        index.write(segment.start, slot, units)
        index.sync(segment.start)


def _check_join(table: SegmentTable, cursor: Cursor, behind: EntryMeta | None, last_chain: int) -> None:
    if behind is None:
        if cursor.chain != last_chain:
            raise CorruptionError(f"the chain of the offered bytes ends in {cursor.chain}, the log's in {last_chain}")
        return
    segment = table.containing(behind.position)
    end = segment.start + table.segment_bytes
    joint = Cursor(behind.position, cursor.index, cursor.term, cursor.chain)
    file = segment.acquire()
    try:
        fault = scan_segment(file, segment.start, end, joint, Collected(), stop=behind.end)
    finally:
        segment.release()
    if fault is not None:
        raise CorruptionError(f"the offered bytes do not join entry {behind.index}: {fault.reason}")


class Scrubber:
    """Verifies the closed segments round and round, and makes their index files agree with them.

    One thread at a time; the log may be appended to and trimmed meanwhile.
    """

    def __init__(self, table: SegmentTable, index: IndexFiles, damage: Damage, snapshots: SnapshotStore) -> None:
        self._table = table
        self._index = index
        self._damage = damage
        self._snapshots = snapshots
        self._cursor: Cursor | None = None

    def step(self, budget_bytes: int, durable_end: int) -> list[CorruptRange]:
        """Verify about `budget_bytes` more, below `durable_end`; returns what was newly found corrupt."""
        found: list[CorruptRange] = []
        while budget_bytes > 0:
            segment, next_index = self._next_segment(durable_end)
            if segment is None or self._cursor is None:
                break
            begun = self._cursor.position
            bad = self._scrub(segment, next_index, self._cursor, budget_bytes)
            if bad is not None:
                self._damage.add(bad)
                found.append(bad)
            budget_bytes -= max(1, self._cursor.position - begun)
        return found

    def _next_segment(self, durable_end: int) -> tuple[Segment | None, int]:
        """The closed segment in which the cursor stands, and the index of the first entry behind it.

        The cursor is set to the oldest segment if it is at the end of the round, and nothing is returned once then.
        """
        segments = self._table.segments
        cursor = self._cursor
        if cursor is None or cursor.position < segments[0].start:
            cursor = self._cursor = self._start_of(segments[0])
        for segment, following in pairwise(segments):
            if segment.start <= cursor.position < following.start <= durable_end:
                return segment, following.first_index
        self._cursor = None
        return None, 0

    def _start_of(self, segment: Segment) -> Cursor:
        base = self._snapshots.at_or_below(segment.start)
        if segment.start == 0:
            return Cursor(0, 0, 0, 0)
        if base is not None and base.position == segment.start and base.last_index + 1 == segment.first_index:
            return Cursor(segment.start, segment.first_index, base.last_term, base.chain_crc)
        return Cursor(segment.start, segment.first_index, 0, None)

    def _scrub(self, segment: Segment, next_index: int, cursor: Cursor, budget_bytes: int) -> CorruptRange | None:
        """Verify up to the budget, the segment's end, or the first damage; the cursor moves behind that."""
        end = segment.start + self._table.segment_bytes
        known = self._damage.at(cursor.position)
        if known is not None:
            cursor.position, cursor.index, cursor.chain = known.end, known.next_index, None
            return None
        into = Collected()
        first_index = cursor.index
        following_damage = min((bad.start for bad in self._damage.ranges if bad.start > cursor.position), default=end)
        try:
            file = segment.acquire()
        except TrimmedError:
            self._cursor = None
            return None
        try:
            fault = scan_segment(
                file, segment.start, end, cursor, into, stop=min(end, following_damage), budget_bytes=budget_bytes
            )
        finally:
            segment.release()
        self._settle_index(segment, first_index, b"".join(into.units))
        if fault is None:
            return None
        start, index = cursor.position, cursor.index
        unit = self._index.read(segment.start, index - segment.first_index) if index < next_index else None
        if fault.size and start + fault.size <= end:
            cursor.position, cursor.index, cursor.chain = start + fault.size, index + 1, fault.chain
        elif unit is not None and (unit.position, unit.index) == (start, index) and unit.end <= end:
            cursor.position, cursor.index, cursor.chain = unit.end, index + 1, None
        else:
            cursor.position, cursor.index = end, next_index
            cursor.chain = cursor.chain if index == next_index else None
        return CorruptRange(start, cursor.position, index, cursor.index)

    def _settle_index(self, segment: Segment, first_index: int, units: bytes) -> None:
        slot = first_index - segment.first_index
        if self._index.read_raw(segment.start, slot, len(units) // UNIT_BYTES) != units:
            self._index.write(segment.start, slot, units)
            self._index.sync(segment.start)
