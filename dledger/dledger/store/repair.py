"""Finds bit rot in closed segments, and heals corrupt ranges with a peer's bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dledger.errors import CorruptionError, TrimmedError
from dledger.store.damage import CorruptRange, Damage
from dledger.store.disk import Buffer, Disk, File
from dledger.store.index import UNIT_BYTES, IndexFiles
from dledger.store.scan import BLOCK_BYTES, Collected, Cursor, Readable, scan_segment
from dledger.store.segments import Segment, SegmentTable
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta

SPOOL_PATH = "raft/repair"
EXAMINE_BYTES = 16 << 20


class Spool:
    """A peer's bytes for a corrupt range, collected in a file until all are there: a range may be a whole segment.

    One at a time; what a crash left is overwritten.  The file is made with the first bytes.  `write`, `pread` and
    `close` block and raise `OSError`.
    """

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._file: File | None = None
        self.size = size
        self.filled = 0

    def restart(self) -> None:
        """Begin anew, with other bytes."""
        self.filled = 0

    def write(self, data: Buffer) -> None:
        """Add the next bytes."""
        file = self._file
        if file is None:
            self._file = file = self._disk.open(SPOOL_PATH, create=True)
            file.truncate(0)
        file.pwrite(data, self.filled)
        self.filled += len(data)

    def pread(self, size: int, offset: int) -> bytes:
        """As `dledger.store.disk.File.pread`."""
        return b"" if self._file is None else self._file.pread(min(size, max(0, self.filled - offset)), offset)

    def close(self) -> None:
        """Remove the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.unlink(SPOOL_PATH)


class Repaired(NamedTuple):
    """What a range that was healed holds: its membership entries, and the runs of its terms, which had been guessed."""

    memberships: list[EntryMeta]
    term_runs: list[tuple[int, int]]


class _Held:
    """Bytes in memory, read as a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.filled = len(data)

    def pread(self, size: int, offset: int) -> bytes:
        """As `dledger.store.disk.File.pread`."""
        return self._data[offset : offset + size]


class _Section:
    """Bytes of the log from `start` on, read as if they were the file of a segment."""

    def __init__(self, source: Readable, start: int, segment_start: int) -> None:
        self._source = source
        self._shift = segment_start - start

    def pread(self, size: int, offset: int) -> bytes:
        """As `dledger.store.disk.File.pread`."""
        return self._source.pread(size, offset + self._shift)


def repair(
    table: SegmentTable,
    index: IndexFiles,
    damaged: CorruptRange,
    data: bytes | Spool,
    before: Cursor,
    behind: EntryMeta | None,
    last_chain: int,
) -> Repaired:
    """Replace a corrupt range by `data`, durably, with its index units; returns what it holds.

    `before` stands at the range's start (chain None: nothing before it is known); `behind` is the entry behind the
    range, or None at the log's end, where the chain must come to `last_chain`.  Raises `CorruptionError` and changes
    nothing unless every byte verifies and the chain joins both ends.
    """
    source = _Held(data) if isinstance(data, bytes) else data
    if source.filled != damaged.end - damaged.start:
        raise CorruptionError(f"{source.filled} bytes do not cover the corrupt range {damaged}")
    cursor = before
    repaired = Repaired([], [])
    verified: list[tuple[Segment, int, int, bytes]] = []
    for segment in table.overlapping(damaged.start, damaged.end):
        end = segment.start + table.segment_bytes
        first_index = cursor.index
        segment_first = first_index if cursor.position == segment.start else segment.first_index
        into = Collected()
        section = _Section(source, damaged.start, segment.start)
        fault = scan_segment(section, segment.start, end, cursor, into, stop=damaged.end)
        if fault is not None:
            raise CorruptionError(f"the bytes offered for {damaged} do not verify: {fault.reason}")
        repaired.memberships.extend(into.memberships)
        repaired.term_runs.extend(into.term_runs)
        verified.append((segment, segment_first, first_index - segment_first, b"".join(into.units)))
    if (cursor.position, cursor.index) != (damaged.end, damaged.next_index):
        raise CorruptionError(f"the bytes offered for {damaged} end at {cursor.position} with index {cursor.index}")
    _check_join(table, cursor, behind, last_chain)
    for segment, segment_first, slot, units in verified:
        _overwrite(segment, damaged, source, table.segment_bytes)
        segment.first_index = segment_first
        index.write(segment, slot, units)
        index.sync(segment.start)
    return repaired


def _overwrite(segment: Segment, damaged: CorruptRange, source: Readable, segment_bytes: int) -> None:
    """Write and sync the part of a corrupt range that lies in one segment."""
    position = max(segment.start, damaged.start)
    end = min(segment.start + segment_bytes, damaged.end)
    file = segment.acquire()
    try:
        while position < end:
            block = source.pread(min(BLOCK_BYTES, end - position), position - damaged.start)
            file.pwrite(block, position - segment.start)
            position += len(block)
        file.datasync()
    finally:
        segment.release()


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

    @property
    def between_rounds(self) -> bool:
        """Whether the next step begins at the oldest segment."""
        return self._cursor is None

    def step(self, budget_bytes: int, before: int) -> list[CorruptRange]:
        """Verify about `budget_bytes` more of the segments that end at or below `before`; returns what was newly found.

        A round ends behind the last of them; the next step begins another one.
        """
        found: list[CorruptRange] = []
        while budget_bytes > 0:
            segment, next_index = self._next_segment(before)
            cursor = self._cursor
            if segment is None or cursor is None:
                break
            begun = cursor.position
            end = segment.start + self._table.segment_bytes
            bad = self._scrub(segment, end, next_index, cursor, budget_bytes)
            if bad is not None:
                self._damage.add(bad)
                found.append(bad)
            budget_bytes -= max(1, cursor.position - begun)
        return found

    def examine(self, segment: Segment, cursor: Cursor, suspect: int, end: int, next_index: int) -> list[CorruptRange]:
        """Verify one segment from the cursor to `end`, where the entry `next_index` begins; returns what is corrupt.

        Ends, once behind the entry `suspect`, behind the damage found, or after about `EXAMINE_BYTES`.
        """
        found: list[CorruptRange] = []
        budget_bytes = EXAMINE_BYTES
        while cursor.position < end and (cursor.index <= suspect or budget_bytes > 0):
            begun = cursor.position
            bad = self._scrub(segment, end, next_index, cursor, EXAMINE_BYTES)
            if bad is not None:
                self._damage.add(bad)
                found.append(bad)
            elif cursor.index > suspect:
                break
            budget_bytes -= max(1, cursor.position - begun)
        return found

    def _next_segment(self, before: int) -> tuple[Segment | None, int]:
        """The closed segment in which the cursor stands, and the index of the first entry behind it.

        The cursor is set to the oldest segment if a round begins, and to None if it ends.
        """
        segments = self._table.segments
        cursor = self._cursor
        if segments and (cursor is None or cursor.position < segments[0].start):
            cursor = self._cursor = self.start_of(segments[0])
        for segment, following in pairwise(segments):
            if cursor is not None and segment.start <= cursor.position < following.start <= before:
                return segment, following.first_index
        self._cursor = None
        return None, 0

    def start_of(self, segment: Segment) -> Cursor:
        """A cursor at the start of a segment; its chain is known if nothing or a snapshot stands before that."""
        base = self._snapshots.at_or_below(segment.start)
        if segment.start == 0:
            return Cursor(0, 0, 0, 0)
        if base is not None and base.position == segment.start and base.last_index + 1 == segment.first_index:
            return Cursor(segment.start, segment.first_index, base.last_term, base.chain_crc)
        return Cursor(segment.start, segment.first_index, 0, None)

    def _scrub(
        self, segment: Segment, end: int, next_index: int, cursor: Cursor, budget_bytes: int
    ) -> CorruptRange | None:
        """Verify up to the budget, to `end`, or to the first damage; the cursor moves behind that."""
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
            cursor.position = end
            self._cursor = None
            return None
        segment_end = segment.start + self._table.segment_bytes
        try:
            fault = scan_segment(
                file,
                segment.start,
                segment_end,
                cursor,
                into,
                stop=min(end, following_damage),
                budget_bytes=budget_bytes,
            )
        finally:
            segment.release()
        self._settle_index(segment, first_index, into.units)
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

    def _settle_index(self, segment: Segment, first_index: int, scanned: Sequence[bytes]) -> None:
        units = b"".join(scanned)
        slot = first_index - segment.first_index
        if self._index.read_raw(segment.start, slot, len(units) // UNIT_BYTES) != units:
            self._index.write(segment, slot, units)
            self._index.sync(segment.start)
