"""Scrub and repair: finds bit rot in closed segments, and heals corrupt ranges with a peer's bytes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dledger.errors import CorruptionError, TrimmedError
from dledger.store.damage import CorruptRange, Damage
from dledger.store.disk import Buffer, Disk, File
from dledger.store.index import UNIT_BYTES, IndexFiles
from dledger.store.scan import BLOCK_BYTES, Collected, Cursor, scan_segment
from dledger.store.segments import Segment, SegmentTable
from dledger.store.snapshots import SnapshotStore
from dledger.store.unreadable import Readable, is_unreadable, read_error
from dledger.types import EntryMeta

SPOOL_PATH = "raft/repair"
EXAMINE_BYTES = 16 << 20


class Spool:
    """Peer's bytes for a corrupt range, collected in a file until all are there. A range may be a whole segment.

    There is one spool at a time. Leftovers of a crash are overwritten. The file is made with the first bytes. `write`,
    `pread` and `close` block and raise `OSError`.
    """

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._file: File | None = None
        self.size = size
        self.filled = 0

    def restart(self) -> None:
        """Begin anew with other bytes."""
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
        """Read collected bytes, as `dledger.store.disk.File.pread` does."""
        return b"" if self._file is None else self._file.pread(min(size, max(0, self.filled - offset)), offset)

    def close(self) -> None:
        """Remove the file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disk.unlink(SPOOL_PATH)


class Repaired(NamedTuple):
    """Content of a healed range: its membership entries and term runs. Recovery could only guess the terms."""

    memberships: list[EntryMeta]
    term_runs: list[tuple[int, int]]


class _MemoryFile:
    """Bytes in memory that can be read like a file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.filled = len(data)

    def pread(self, size: int, offset: int) -> bytes:
        """Read bytes, as `dledger.store.disk.File.pread` does."""
        return self._data[offset : offset + size]


class _Section:
    """Bytes of the log from `start` on that can be read like the file of a segment."""

    def __init__(self, source: Readable, start: int, segment_start: int) -> None:
        self._source = source
        self._offset = segment_start - start

    def pread(self, size: int, offset: int) -> bytes:
        """Read bytes, as `dledger.store.disk.File.pread` does."""
        return self._source.pread(size, offset + self._offset)


def repair(
    table: SegmentTable,
    index: IndexFiles,
    damaged: CorruptRange,
    data: bytes | Spool,
    cursor_at_start: Cursor,
    next_entry: EntryMeta | None,
    last_chain: int,
) -> Repaired:
    """Replace a corrupt range by `data`, durably, with its index units, and return its content.

    `before` is the cursor at the range's start (chain None: nothing before it is known). `behind` is the entry after
    the range. It is None at the log's end, where the chain must be `last_chain`. Raises `CorruptionError` and changes
    nothing unless every byte verifies and the chain joins both ends.
    """
    source = _MemoryFile(data) if isinstance(data, bytes) else data
    if source.filled != damaged.end - damaged.start:
        raise CorruptionError(f"{source.filled} bytes do not cover the corrupt range {damaged}")
    cursor = cursor_at_start
    repaired = Repaired([], [])
    verified: list[tuple[Segment, int, int, bytes]] = []
    for segment in table.overlapping(damaged.start, damaged.end):
        end = segment.start + table.segment_bytes
        first_index = cursor.index
        segment_first = first_index if cursor.position == segment.start else segment.first_index
        collected = Collected()
        section = _Section(source, damaged.start, segment.start)
        fault = scan_segment(section, segment.start, end, cursor, collected, stop=damaged.end)
        if fault is not None:
            raise CorruptionError(f"the bytes offered for {damaged} do not verify: {fault.reason}")
        repaired.memberships.extend(collected.memberships)
        repaired.term_runs.extend(collected.term_runs)
        verified.append((segment, segment_first, first_index - segment_first, b"".join(collected.units)))
    if (cursor.position, cursor.index) != (damaged.end, damaged.next_index):
        raise CorruptionError(f"the bytes offered for {damaged} end at {cursor.position} with index {cursor.index}")
    _check_join(table, cursor, next_entry, last_chain)
    for segment, segment_first, slot, units in verified:
        _overwrite(segment, damaged, source, table.segment_bytes)
        segment.first_index = segment_first
        index.write(segment, slot, units)
        index.sync(segment.start)
    return repaired


def _overwrite(segment: Segment, damaged: CorruptRange, source: Readable, segment_bytes: int) -> None:
    """Write and sync the part of a corrupt range in one segment, and check that it can be read."""
    position = max(segment.start, damaged.start)
    end = min(segment.start + segment_bytes, damaged.end)
    file = segment.acquire()
    try:
        while position < end:
            block = _reread(source, min(BLOCK_BYTES, end - position), position - damaged.start)
            file.pwrite(block, position - segment.start)
            position += len(block)
        file.datasync()
        _require_readable(segment, file, max(segment.start, damaged.start), end)
    finally:
        segment.release()


def _reread(source: Readable, size: int, offset: int) -> bytes:
    """Read collected and verified bytes again. Raises `CorruptionError` if they have rotted since."""
    try:
        return source.pread(size, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise read_error("reading the collected bytes again", error) from error


def _require_readable(segment: Segment, file: File, position: int, end: int) -> None:
    """Raise `OSError` unless the bytes just written can be read. A disk that loses them cannot be healed."""
    while position < end:
        size = min(BLOCK_BYTES, end - position)
        found = file.pread(size, position - segment.start)
        position += size
        if len(found) != size:
            raise OSError(errno.EIO, f"the segment at {segment.start} ends before {position}, where it was written")


def _check_join(table: SegmentTable, cursor: Cursor, next_entry: EntryMeta | None, last_chain: int) -> None:
    if next_entry is None:
        if cursor.chain != last_chain:
            raise CorruptionError(f"the chain of the offered bytes ends in {cursor.chain}, the log's in {last_chain}")
        return
    segment = table.containing(next_entry.position)
    end = segment.start + table.segment_bytes
    joint = Cursor(next_entry.position, cursor.index, cursor.term, cursor.chain)
    file = segment.acquire()
    try:
        fault = scan_segment(file, segment.start, end, joint, Collected(), stop=next_entry.end)
    finally:
        segment.release()
    if fault is not None:
        raise CorruptionError(f"the offered bytes do not join entry {next_entry.index}: {fault.reason}")


class Scrubber:
    """Verifies the closed segments round and round, and corrects their index files.

    Call it from one thread at a time. The log may be appended to and trimmed meanwhile.
    """

    def __init__(self, table: SegmentTable, index: IndexFiles, damage: Damage, snapshots: SnapshotStore) -> None:
        self._table = table
        self._index = index
        self._damage = damage
        self._snapshots = snapshots
        self._cursor: Cursor | None = None
        self.verified_position = -1
        """Position up to which the present round has verified the log, or the last one between rounds; -1 before."""
        self.rounds = 0
        """Number of finished rounds since the start."""

    @property
    def between_rounds(self) -> bool:
        """True if the next step begins at the oldest segment."""
        return self._cursor is None

    def step(self, budget_bytes: int, end_position: int) -> list[CorruptRange]:
        """Verify about `budget_bytes` more of the segments that end at or below `before`; returns new corrupt ranges.

        A round ends after the last of these segments. The next step begins another round.
        """
        found: list[CorruptRange] = []
        while budget_bytes > 0:
            segment, next_index = self._next_segment(end_position)
            cursor = self._cursor
            if segment is None or cursor is None:
                break
            start_position = cursor.position
            end = segment.start + self._table.segment_bytes
            corrupt = self._scrub(segment, end, next_index, cursor, budget_bytes)
            if corrupt is not None:
                self._damage.add(corrupt)
                found.append(corrupt)
            budget_bytes -= max(1, cursor.position - start_position)
            self.verified_position = cursor.position
        return found

    def examine(self, segment: Segment, cursor: Cursor, suspect: int, end: int, next_index: int) -> list[CorruptRange]:
        """Verify one segment from the cursor to `end`, where entry `next_index` begins; returns the corrupt ranges.

        Once the entry `suspect` is passed, it stops at the first intact stretch, or after about `EXAMINE_BYTES`.
        """
        found: list[CorruptRange] = []
        budget_bytes = EXAMINE_BYTES
        while cursor.position < end and (cursor.index <= suspect or budget_bytes > 0):
            start_position = cursor.position
            corrupt = self._scrub(segment, end, next_index, cursor, EXAMINE_BYTES)
            if corrupt is not None:
                self._damage.add(corrupt)
                found.append(corrupt)
            elif cursor.index > suspect:
                break
            budget_bytes -= max(1, cursor.position - start_position)
        return found

    def _next_segment(self, end_position: int) -> tuple[Segment | None, int]:
        """Return the closed segment with the cursor, and the index of the first entry behind that segment.

        The cursor is set to the oldest segment if a round begins, and to None if a round ends.
        """
        segments = self._table.segments
        cursor = self._cursor
        if segments and (cursor is None or cursor.position < segments[0].start):
            cursor = self._cursor = self.start_of(segments[0])
        for segment, next_segment in pairwise(segments):
            if cursor is not None and segment.start <= cursor.position < next_segment.start <= end_position:
                return segment, next_segment.first_index
        if segments and cursor is not None and cursor.position > segments[0].start:
            self.rounds += 1
        self._cursor = None
        return None, 0

    def start_of(self, segment: Segment) -> Cursor:
        """Return a cursor at the start of a segment. Its chain is known at the log's start and at a snapshot."""
        base = self._snapshots.at_or_below(segment.start)
        if segment.start == 0:
            return Cursor(0, 0, 0, 0)
        if base is not None and base.position == segment.start and base.last_index + 1 == segment.first_index:
            return Cursor(segment.start, segment.first_index, base.last_term, base.chain_crc)
        return Cursor(segment.start, segment.first_index, 0, None)

    def _scrub(
        self, segment: Segment, end: int, next_index: int, cursor: Cursor, budget_bytes: int
    ) -> CorruptRange | None:
        """Verify up to the budget, to `end`, or to the first damage. The cursor moves behind that."""
        known_damage = self._damage.range_at(cursor.position)
        if known_damage is not None:
            cursor.position, cursor.index, cursor.chain = known_damage.end, known_damage.next_index, None
            return None
        collected = Collected()
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
                collected,
                stop=min(end, following_damage),
                budget_bytes=budget_bytes,
            )
        finally:
            segment.release()
        self._settle_index(segment, first_index, collected.units)
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
