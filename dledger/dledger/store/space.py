"""Space for entries to come: reserved ahead, so that a full disk is noticed here and never by a write of an entry.

The current segment is reserved in steps, then the file of the next segment. That file has its final name from the
beginning, so the log continues in it without a call to the disk. An event loop writes entries, and must not wait for
any other disk work. Workers reserve both files, and the units of their index files.

In the background the coming part of the current segment is filled with zeros, and then the next segment. Overwriting
written blocks syncs up to twice as fast as first writes. A recycled trimmed segment needs no filling. Its content has
positions below the log's first position, so that no recovery can take it for entries of its new place. A segment that a
truncation removes also becomes the next one, erased: on a full disk its space would otherwise be lost.

Entries that reach a step of filling under way have to wait for it. So where entries have caught up, filling continues
further ahead. A log that grows much faster than it could be filled is not filled.

A start gives the next segment and the rest of the current one back. On a disk so short of space that others might take
it, the start keeps the reserve for no-ops, membership entries and trims.

Zeros must never overwrite an entry. In the current segment, zeros are written at or above `free_end` only, and entries
below it only. `free_end` is never lowered below a claim. The next segment is no longer filled once one of its entries
is claimed.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from dledger.errors import LogFullError, StorageError
from dledger.store.disk import LACKING, Disk, File
from dledger.store.erase import erase
from dledger.store.index import IndexFiles
from dledger.store.open_files import OpenFiles
from dledger.store.segments import DIRECTORY, Segment, segment_path
from dledger_base.invariants import invariant, known
from dledger_base.room import FULL

SHORT_OF_SPACE_RESERVES = 4
"""Factor: with less free space than so many times the reserve, a start keeps the reserve.

Otherwise a start gives the reserve away and takes it again.
"""
RESERVE_STEP_BYTES = 64 << 20
FILL_STEP_BYTES = 1 << 20
FILL_FROM_SHARE = 8
"""Divisor: the next segment is filled once 1/8 of the current one is written. So a small log never pays for it."""
FILL_AHEAD_SHARE = 32
"""Divisor: the current segment is kept filled for 1/32 of its size beyond the log's end.

Where entries caught up with the filling, the first half of that is left out.
"""
FILL_LEAD_SHARE = 256
"""Divisor: entries may go 1/256 of the segment beyond the end of filling before they ask again.

A log that has grown by less than that since it was opened or truncated is not filled at all.
"""
MAX_GROWTH_FACTOR = 2
"""Maximum factor by which the log may outgrow the filling. A log that grows faster is not filled.

Half of it would be written twice, and syncs would still be as slow.
"""

_ZEROS = bytes(FILL_STEP_BYTES)


class KeptBack(NamedTuple):
    """Space that a recovery keeps behind the end of the log: bytes of segments, and units of index files."""

    bytes: int
    units: int


NOTHING_KEPT = KeptBack(0, 0)


class Need(NamedTuple):
    """Need of entries: the position up to which the log is reserved, and (segment start, units) of index files."""

    end: int
    units: tuple[tuple[int, int], ...]


def space_kept_at_start(disk: Disk, reserve_bytes: int, reserve_units: int) -> KeptBack:
    """Return the space that a start keeps: the reserve if the disk is so full that others might take it, else nothing.

    Nothing is kept if possible, because erasing it takes time.
    """
    free, _ = disk.usage(DIRECTORY)
    return KeptBack(reserve_bytes, reserve_units) if free < SHORT_OF_SPACE_RESERVES * reserve_bytes else NOTHING_KEPT


class _SegmentFile:
    """File of a segment to come: `reserved` bytes are safe to write; the first `filled` were written before."""

    __slots__ = ("file", "filled", "filler", "reserved", "start")

    def __init__(self, start: int, file: File, reserved: int, filled: int) -> None:
        self.start = start
        self.file = file
        self.filler: File | None = None
        """Second handle of the file for zeros, opened with `write_through`."""
        self.reserved = reserved
        self.filled = filled

    def close_filler(self) -> None:
        if self.filler is not None:
            self.filler.close()
            self.filler = None


class Space:
    """Reserved space of the current segment, the next one and their index files.

    `claim` and `roll` are called on the event loop and never block. All other methods block and are for workers.
    Workers take turns (`_disk_lock`, held while they use the disk). State shared with the event loop is under `_lock`,
    which no worker holds while it uses the disk.
    """

    def __init__(self, disk: Disk, index: IndexFiles, segment_bytes: int, open_files: OpenFiles | None = None) -> None:
        self.reserved_end = 0
        """Log position up to which there is space for entries, in the current segment and then in the next."""
        self.free_end = 0
        """Log position below which no zeros are written into the current segment."""
        self._disk = disk
        self._index = index
        self._open_files = open_files
        self._segment_bytes = segment_bytes
        self._current: _SegmentFile | None = None
        self._next: _SegmentFile | None = None
        self._filling: _SegmentFile | None = None
        """The file in which a step of filling is under way."""
        self._claimed_end = 0
        """The highest position for which entries have claimed space. Everything below belongs to them."""
        self._fill_start = 0
        self._has_entries_at_filling = False
        self._last_prepared_end = 0
        self._lead_bytes = max(1, segment_bytes // FILL_LEAD_SHARE)
        self._files_to_close: list[_SegmentFile] = []
        """Files whose fillers are to be closed."""
        self._disk_lock = Lock()
        self._lock = Lock()

    # Calls of the event loop

    def claim(self, end: int, reserved_to: int) -> bool:
        """Let entries be written up to a log position, and return whether they may be.

        False if the log is not reserved up to `reserved_to`, or if a step of filling is under way below `end`. A
        `reserve` then ends after that step. A claim stays reserved until it is written, also through a truncation.
        """
        if reserved_to > self.reserved_end:
            return False
        if end > self.free_end and not self._leave_to_entries(end):
            return False
        self._claimed_end = max(self._claimed_end, end)
        return True

    def _leave_to_entries(self, end: int) -> bool:
        """Leave everything below a log position, and some more, to entries."""
        self._has_entries_at_filling = True
        with self._lock:
            current = self._current
            if current is None or end > self.reserved_end or self._filling is current:
                return False
            segment_end = current.start + self._segment_bytes
            if end > segment_end:
                if self._filling is not None:
                    return False
                self._claimed_end = max(self._claimed_end, end)  # from here on the next segment is not filled
            self.free_end = max(self.free_end, min(end + self._lead_bytes, segment_end))
        return True

    def roll(self, first_index: int) -> Segment:
        """Continue in the next segment, some of which is claimed. Memory only. Its first entry has `first_index`."""
        with self._lock:
            previous = known(self._current, "a log that is being rewritten does not roll")
            current = known(self._next, "the next segment is there before an entry of it", after=previous.start)
            invariant(self._filling is None, "no zeros are written below a claim", start=current.start)
            self._files_to_close.append(previous)
            self._next = None
            self._make_current(current)
        segment = Segment(self._disk, current.start, first_index, current.file, files=self._open_files)
        segment.keep_open()
        return segment

    # Calls of workers

    def start_segment(self, segment: Segment, reserved: int, filled: int) -> None:
        """Make a segment the current one, or note that it was cut.

        `reserved` bytes are safe to write, and the first `filled` have been written before.
        """
        with self._disk_lock:
            self._close_fillers()
            with self._lock:
                self._make_current(_SegmentFile(segment.start, segment.file, reserved, filled))

    def _make_current(self, current: _SegmentFile) -> None:
        """Make a file the current segment's. Call with the lock held."""
        self._current = current
        segment_end = current.start + self._segment_bytes
        self.free_end = min(max(current.start + current.filled, self._claimed_end) + self._lead_bytes, segment_end)
        self._fill_start = self.free_end
        self._has_entries_at_filling = False
        self._update_reserved_end()

    def reserve(self, need: Need) -> None:
        """Reserve the space that entries need, at most to the end of the segment after the current one.

        Does nothing while the log is being rewritten. Raises `LogFullError` if there is no space, in which case earlier
        reservations stay, or `StorageError`.
        """
        with self._disk_lock:
            if self._current is None:
                return
            for start, units in need.units:
                self._index.reserve(start, units)
            self._reserve_up_to(need.end)

    def reserve_up_to(self, end: int) -> None:
        """Reserve up to a log position, like `reserve`."""
        with self._disk_lock:
            self._reserve_up_to(end)

    def recycle(self, segment: Segment) -> bool:
        """Make a trimmed segment the next one, and return whether that was done.

        The trimmed segment must be whole and unused. The present next segment must be neither claimed nor completely
        filled.
        """
        with self._disk_lock:
            file = self._disk.open(segment_path(segment.start))
            whole = file.size() == self._segment_bytes and not segment.held
            taken_out = self._take_out_next() if whole else None
            if taken_out is None:
                file.close()
                return False
            start, replaced_next = taken_out
            # The log cannot go on there before `_set_next`: without a next segment nothing behind this segment's end is
            # reserved. Otherwise the rename would take a file away while entries are written to it.
            self._disk.rename(segment_path(segment.start), segment_path(start))
            self._set_next(_SegmentFile(start, file, self._segment_bytes, self._segment_bytes))
            if replaced_next is not None:
                replaced_next.close_filler()
                replaced_next.file.close()
        return True

    def _take_out_next(self) -> tuple[int, _SegmentFile | None] | None:
        """Take the next segment's file out, and return its start and that file; None if it must stay."""
        with self._lock:
            current, next_file = self._current, self._next
            if current is None or (next_file is not None and next_file.filled >= self._segment_bytes):
                return None
            start = current.start + self._segment_bytes
            if self._claimed_end > start:
                return None
            self._next = None
            self._update_reserved_end()
        return start, next_file

    def _set_next(self, segment_file: _SegmentFile) -> None:
        with self._lock:
            self._next = segment_file
            self._update_reserved_end()

    def reclaim(self, segment: Segment, written: int) -> None:
        """Make the segment after the end of a truncated log the next one, erased.

        Its first `written` bytes hold entries. The current segment is this one, or a later one that is removed as well.
        So nothing is reserved or filled until `start_segment`. The former next segment takes this one's place if it is
        at least as large, or if this one cannot be erased in its space.
        """
        with self._disk_lock:
            path = segment_path(segment.start)
            file = self._disk.open(path)
            self._close_fillers()
            with self._lock:
                former_next, self._current, self._next = self._next, None, None
            size = file.size()
            if (former_next is None or former_next.reserved < size) and not erase(file, 0, written):
                size = written = 0
            if former_next is not None and former_next.reserved >= size:
                file.close()
                self._disk.rename(segment_path(former_next.start), path)
                self._next = _SegmentFile(segment.start, former_next.file, former_next.reserved, former_next.filled)
                return
            if former_next is not None:
                former_next.file.close()
                self._disk.unlink(segment_path(former_next.start))
            self._next = _SegmentFile(segment.start, file, size, written)

    def keep_next(self, start: int) -> None:
        """Go on with the next segment that a recovery has kept, if there is one. None of it counts as reserved."""
        with self._disk_lock:
            if self._disk.exists(segment_path(start)):
                self._next = _SegmentFile(start, self._disk.open(segment_path(start)), 0, 0)

    def close(self) -> None:
        """Close the next segment's file, and stop reserving and filling.

        The next open removes the file, unless the disk is short of space.
        """
        with self._disk_lock:
            self._close_fillers()
            with self._lock:
                former_next, self._current, self._next = self._next, None, None
                self._claimed_end = 0
            if former_next is not None:
                former_next.file.close()

    def prepare(self, budget_bytes: int, written_end: int, reserve_to: int) -> bool:
        """Reserve up to `reserve_to`, then fill the coming space, writing at most `budget_bytes`.

        Nothing is filled if the log has grown by more than `MAX_GROWTH_FACTOR` times as much since the last call.
        Filling stops once entries catch up with it. Returns True if there is more to do. `written_end` is where the log
        ends. A full disk is no error here. Raises `StorageError`.
        """
        try:
            self.reserve_up_to(reserve_to)
        except LogFullError:
            return False
        grown_bytes, self._last_prepared_end = written_end - self._last_prepared_end, written_end
        if grown_bytes > MAX_GROWTH_FACTOR * budget_bytes:
            return True
        if self._has_entries_at_filling:
            self._fill_further_ahead(written_end)
        while budget_bytes > 0 and not self._has_entries_at_filling:
            with self._disk_lock:
                try:
                    step = self._fill(budget_bytes, written_end)
                except OSError as error:
                    if error.errno in LACKING:
                        return False
                    raise StorageError(f"filling {DIRECTORY} with zeros failed: {error}") from error
            if not step:
                return False
            budget_bytes -= step
        return True

    def _fill_further_ahead(self, written_end: int) -> None:
        """Let filling go on further ahead, where it stays in front of the entries."""
        with self._lock:
            current = self._current
            if current is not None and written_end >= self._fill_start:
                end = written_end + self._segment_bytes // FILL_AHEAD_SHARE // 2
                self.free_end = max(self.free_end, min(end, current.start + self._segment_bytes))
                self._has_entries_at_filling = False

    def _fill(self, budget_bytes: int, written_end: int) -> int:
        """Fill a step of the current segment or the next one, and return its size; 0 if nothing is due."""
        self._close_unused()
        if self._current is not None and self._next is None and self._wants_next_filled(written_end):
            self._make_next()
        with self._lock:
            segment_file, offset, step = self._next_step(min(FILL_STEP_BYTES, budget_bytes), written_end)
            if segment_file is None:
                return 0
            self._filling = segment_file
        try:
            if segment_file.filler is None:
                segment_file.filler = self._disk.open(segment_path(segment_file.start), write_through=True)
            segment_file.filler.pwrite(memoryview(_ZEROS)[:step], offset)
        except OSError:
            step = 0
            raise
        finally:
            with self._lock:
                self._filling = None
                self._note_filled(segment_file, offset + step)
        return step

    def _next_step(self, step: int, written_end: int) -> tuple[_SegmentFile | None, int, int]:
        """Return the file, offset and size of the zeros that are due. Call with the lock held."""
        current, next_file = self._current, self._next
        if current is None or self._has_entries_at_filling:
            return None, 0, 0
        target = min(written_end + self._segment_bytes // FILL_AHEAD_SHARE, current.start + current.reserved)
        if target > self.free_end and written_end >= self._fill_start:
            return current, self.free_end - current.start, min(step, target - self.free_end)
        if next_file is None or not self._wants_next_filled(written_end):
            return None, 0, 0
        step = min(step, self._segment_bytes - next_file.filled)
        return (next_file, next_file.filled, step) if step else (None, 0, 0)

    def _wants_next_filled(self, written_end: int) -> bool:
        current = self._current
        return (
            current is not None
            and (written_end - current.start) * FILL_FROM_SHARE >= self._segment_bytes
            and self._claimed_end <= current.start + self._segment_bytes
        )

    def _note_filled(self, segment_file: _SegmentFile, end: int) -> None:
        """Note that a step was written up to an offset. Call with the lock held."""
        if segment_file is self._current:
            self.free_end = max(self.free_end, segment_file.start + end)
        else:
            segment_file.filled = max(segment_file.filled, end)
            segment_file.reserved = max(segment_file.reserved, end)
            self._update_reserved_end()

    def _make_next(self) -> _SegmentFile:
        """Return the next segment's file, and make it if there is none.

        Current and next segment must be read under one hold of the lock. Otherwise:

        1. This method finds no next segment, because a roll has just taken it, and reads the segment that was current
           before.
        2. It takes the file that has just become current for the next one.
        3. That file is filled with zeros from its beginning, over entries.
        """
        with self._lock:
            if self._next is not None:
                return self._next
            start = known(self._current, "the log is not being rewritten").start + self._segment_bytes
        # The log does not go on behind the current segment before the next one is there, so `start` stays right.
        segment_file = _SegmentFile(start, self._disk.open(segment_path(start), create=True), 0, 0)
        if self._open_files is not None:
            self._open_files.close_surplus()  # each segment that was written is still open
        self._set_next(segment_file)
        return segment_file

    def _close_fillers(self) -> None:
        self._close_unused()
        for segment_file in (self._current, self._next):
            if segment_file is not None:
                segment_file.close_filler()

    def _close_unused(self) -> None:
        with self._lock:
            unused, self._files_to_close = self._files_to_close, []
        for segment_file in unused:
            segment_file.close_filler()

    def _reserve_up_to(self, end: int) -> None:
        current = self._current
        if current is None or end <= self.reserved_end:
            return
        segment_end = current.start + self._segment_bytes
        try:
            if current.reserved < self._segment_bytes:
                self._reserve_file(current, end - current.start)
            if end > segment_end:
                segment_file = self._make_next()
                self._reserve_file(segment_file, end - segment_file.start)
        except OSError as error:
            if error.errno in LACKING:
                raise LogFullError(f"no space to reserve the log up to {end}: {error}") from error
            raise StorageError(f"reserving the log up to {end} failed: {error}") from error

    def _reserve_file(self, segment_file: _SegmentFile, needed_bytes: int) -> None:
        """Reserve a file up to `needed_bytes`, and a step more if there is room."""
        needed_bytes, reserved = min(needed_bytes, self._segment_bytes), segment_file.reserved
        if needed_bytes <= reserved:
            return
        end = min(self._segment_bytes, max(needed_bytes, reserved + RESERVE_STEP_BYTES))
        try:
            segment_file.file.reserve(reserved, end - reserved)
        except OSError as error:
            if end == needed_bytes or error.errno not in FULL:
                raise
            segment_file.file.reserve(reserved, needed_bytes - reserved)
            end = needed_bytes
        with self._lock:
            segment_file.reserved = end
            self._update_reserved_end()

    def _update_reserved_end(self) -> None:
        """Update the end of the reserved space. Call with the lock held."""
        if self._current is not None:
            self.reserved_end = self._current.start + self._current.reserved
            if self._current.reserved >= self._segment_bytes and self._next is not None:
                self.reserved_end += self._next.reserved
