"""Space for entries to come: reserved ahead, so that a full disk is met here and never by a write of an entry.

Reserved are the current segment in steps, then a spare file `commitlog/spare` that becomes the next segment.  In the
background what comes next of the current segment, and then the spare, are filled with zeros (overwriting written blocks
syncs up to twice as fast as first writes), unless a trimmed segment is recycled as the spare.  What a recycled file
holds has positions below the log's first one, so that no recovery can take it for entries of its new place.  A segment
that a truncation takes off the log becomes the spare, too, erased: on a full disk its space would not come back.

Entries that come to where a step of filling is being written have to wait for it.  So filling goes on further ahead
where they caught up with it, and a log that grows much faster than it could be filled is not filled.

A start gives the spare and the rest of the current segment back, unless the disk is so short of space that others might
take it: then it keeps what is kept back for no-ops, membership entries and trims.

Zeros must never meet an entry: in the current segment they are written at or above `free_end` only, entries below it
only, and `free_end` moves up only, under the lock that every step of filling holds.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from dledger.errors import LogFullError, StorageError
from dledger.store.disk import FULL, Disk, File
from dledger.store.erase import erase
from dledger.store.segments import DIRECTORY, Segment, segment_path

SPARE_PATH = f"{DIRECTORY}/spare"
SHORT_OF_SPACE_RESERVES = 4
"""If less than so many times what is kept back is free, a start does not give it away and take it again."""
RESERVE_STEP_BYTES = 64 << 20
FILL_STEP_BYTES = 1 << 20
FILL_FROM_SHARE = 8
"""The spare is filled once 1/8 of the current segment is written: a small log never pays for it."""
FILL_AHEAD_SHARE = 32
"""The current segment is kept filled for 1/32 of its size beyond the log's end.  Of that, the first half is left out
where entries caught up with the filling.
"""
FILL_LEAD_SHARE = 256
"""Entries may go 1/256 of the segment beyond where filling ends before they ask again; nor does a log that has not
grown by so much since it was opened or truncated pay for any filling.
"""
OUTGROWN = 2
"""A log that grows by more than so many times what is filled meanwhile is not filled: half of it would be written
twice, and syncs would be as slow.
"""

_ZEROS = bytes(FILL_STEP_BYTES)


class KeptBack(NamedTuple):
    """What a recovery keeps behind the end of the log: bytes of segments, and units of index files."""

    bytes: int
    units: int


NOTHING_KEPT = KeptBack(0, 0)


def kept_through_a_start(disk: Disk, reserve_bytes: int, reserve_units: int) -> KeptBack:
    """What is kept back, if the disk is so full that others might take it; else nothing, for erasing it takes time."""
    free, _ = disk.usage(DIRECTORY)
    return KeptBack(reserve_bytes, reserve_units) if free < SHORT_OF_SPACE_RESERVES * reserve_bytes else NOTHING_KEPT


class _Spare:
    """The spare file: `reserved` bytes are safe to write, the first `filled` were written before."""

    __slots__ = ("durable_name", "file", "filled", "filler", "reserved")

    def __init__(self, file: File, reserved: int, filled: int) -> None:
        self.file = file
        self.filler: File | None = None
        self.reserved = reserved
        self.filled = filled
        self.durable_name = False

    def close_filler(self) -> None:
        if self.filler is not None:
            self.filler.close()
            self.filler = None


class Space:
    """What is reserved of the current segment and the spare.

    `prepare` may run on a worker thread, everything else on the event loop; a lock is held for at most one step of
    filling.
    """

    def __init__(self, disk: Disk, segment_bytes: int, *, keep_spare: bool = False) -> None:
        """`keep_spare`: go on with the spare that is there, of which nothing is taken for reserved."""
        self.reserved_end = 0
        """Log position up to which there is space for entries, in the current segment and then in the spare."""
        self.free_end = 0
        """Log position up to which entries of the current segment can be written without asking (see `take`)."""
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._current: Segment | None = None
        self._current_reserved = 0
        self._current_filler: File | None = None
        self._fill_from = 0
        self._caught_up = False
        self._prepared_from = 0
        self._lead = max(1, segment_bytes // FILL_LEAD_SHARE)
        self._spare: _Spare | None = None
        self._lock = Lock()
        if keep_spare and disk.exists(SPARE_PATH):
            self._spare = _Spare(disk.open(SPARE_PATH), 0, 0)
        else:
            disk.unlink(SPARE_PATH)

    def start_segment(self, segment: Segment, reserved: int, filled: int) -> None:
        """A segment becomes the current one, or was cut: `reserved` bytes are safe to write, `filled` were before."""
        with self._lock:
            self._close_current_filler()
            self._current = segment
            self._current_reserved = reserved
            self.free_end = min(segment.start + filled + self._lead, segment.start + self._segment_bytes)
            self._fill_from = self.free_end
            self._caught_up = False
            self._count()

    def take(self, end: int) -> None:
        """Let entries be written up to a position of the current segment; waits for a step of filling, if one runs."""
        self._caught_up = True
        with self._lock:
            if self._current is not None:
                self._leave(self._current, end + self._lead)

    def cover(self, end: int) -> None:
        """Reserve up to a log position, at most to the end of the segment after the current one.

        Raises `LogFullError` if there is no space; what was reserved before stays.
        """
        if end > self.reserved_end:
            with self._lock:
                self._extend(end)

    def take_next(self, start: int) -> tuple[File, int, int]:
        """The file of the next segment, under its name (not yet durable): how much of it is reserved, and filled."""
        with self._lock:
            spare, self._spare = self._spare, None
            if spare is None:
                return self._disk.open(segment_path(start), create=True), 0, 0
            spare.close_filler()
            if not spare.durable_name:
                self._disk.sync_dir(DIRECTORY)
            self._disk.rename(SPARE_PATH, segment_path(start))
            return spare.file, spare.reserved, spare.filled

    def recycle(self, segment: Segment) -> bool:
        """Make a trimmed segment the spare, if it is whole, unused and the spare is not ready; else do nothing.

        Blocks.  What the spare held before is given back without the lock, for which the event loop may be waiting.
        """
        file = self._disk.open(segment_path(segment.start))
        with self._lock:
            before = self._spare
            ready = before is not None and before.filled >= self._segment_bytes
            used = not (segment.held or ready or file.size() != self._segment_bytes)
            if used:
                self._disk.rename(segment_path(segment.start), SPARE_PATH)
                self._spare = _Spare(file, self._segment_bytes, self._segment_bytes)
                self._count()
        if not used:
            file.close()
        elif before is not None:
            before.close_filler()
            before.file.close()
        return used

    def reclaim(self, segment: Segment, written: int) -> bool:
        """Make a segment that a truncation takes off the log the spare, erased, unless there is a larger one.

        Its first `written` bytes hold entries.  The current segment goes with it or before it, so nothing is reserved
        or filled until `start_segment`.  False if the file is still there under its name.  Blocks.
        """
        with self._lock:
            self._close_current_filler()
            self._current = None
            file = self._disk.open(segment_path(segment.start))
            size = file.size()
            if (self._spare is not None and self._spare.reserved >= size) or not erase(file, 0, written):
                file.close()
                return False
            self._drop_spare()
            self._disk.rename(segment_path(segment.start), SPARE_PATH)
            self._spare = _Spare(file, size, written)
            return True

    def discard(self) -> None:
        """Drop the spare."""
        with self._lock:
            self._drop_spare()

    def close(self) -> None:
        """Close the spare's files, and fill nothing any more; the next open removes the spare."""
        with self._lock:
            self._close_current_filler()
            self._current = None
            if self._spare is not None:
                self._spare.close_filler()
                self._spare.file.close()
                self._spare = None

    def prepare(self, budget_bytes: int, written_end: int, reserve_to: int) -> bool:
        """Reserve up to `reserve_to` and fill what comes next and the spare, writing at most `budget_bytes`.

        Nothing is filled if the log has grown by more than `OUTGROWN` times as much since the last call, or once
        entries catch up with the filling.  True if there is more to do.  `written_end` is where the log ends.  A full
        disk is no error here.

        Raises `StorageError`.
        """
        try:
            self.cover(reserve_to)
        except LogFullError:
            return False
        grown, self._prepared_from = written_end - self._prepared_from, written_end
        if grown > OUTGROWN * budget_bytes:
            return True
        if self._caught_up:
            self._go_ahead(written_end)
        while budget_bytes > 0 and not self._caught_up:
            with self._lock:
                current = self._current
                if current is None:
                    return False
                try:
                    step = self._fill_current(current, budget_bytes, written_end)
                    if not step and (written_end - current.start) * FILL_FROM_SHARE >= self._segment_bytes:
                        step = self._fill_spare(budget_bytes)
                except OSError as error:
                    if error.errno in FULL:
                        return False
                    raise StorageError(f"filling {DIRECTORY} with zeros failed: {error}") from error
                if not step:
                    return False
            budget_bytes -= step
        return True

    def _go_ahead(self, written_end: int) -> None:
        """Have filling go on where entries will not be before it has been there."""
        with self._lock:
            if self._current is not None and written_end >= self._fill_from:
                self._leave(self._current, written_end + self._segment_bytes // FILL_AHEAD_SHARE // 2)
                self._caught_up = False

    def _leave(self, current: Segment, end: int) -> None:
        """Leave everything below a log position to entries; under the lock."""
        self.free_end = max(self.free_end, min(end, current.start + self._segment_bytes))

    def _fill_current(self, current: Segment, budget_bytes: int, written_end: int) -> int:
        """Fill a step of the current segment, if it is due; returns its size."""
        target = min(written_end + self._segment_bytes // FILL_AHEAD_SHARE, current.start + self._current_reserved)
        step = min(FILL_STEP_BYTES, budget_bytes, target - self.free_end)
        if step <= 0 or written_end < self._fill_from:
            return 0
        if self._current_filler is None:
            self._current_filler = self._disk.open(segment_path(current.start), write_through=True)
        self._current_filler.pwrite(memoryview(_ZEROS)[:step], self.free_end - current.start)
        self.free_end += step
        return step

    def _close_current_filler(self) -> None:
        if self._current_filler is not None:
            self._current_filler.close()
            self._current_filler = None

    def _fill_spare(self, budget_bytes: int) -> int:
        """Fill a step of the spare, if it is not full; returns its size."""
        spare = self._settled_spare()
        step = min(FILL_STEP_BYTES, budget_bytes, self._segment_bytes - spare.filled)
        if not step:
            return 0
        if spare.filler is None:
            spare.filler = self._disk.open(SPARE_PATH, write_through=True)
        spare.filler.pwrite(memoryview(_ZEROS)[:step], spare.filled)
        spare.filled += step
        spare.reserved = max(spare.reserved, spare.filled)
        self._count()
        return step

    def _settled_spare(self) -> _Spare:
        """The spare, made if there is none, its name durable."""
        if self._spare is None:
            self._spare = _Spare(self._disk.open(SPARE_PATH, create=True), 0, 0)
        if not self._spare.durable_name:
            self._disk.sync_dir(DIRECTORY)
            self._spare.durable_name = True
        return self._spare

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.close_filler()
            self._spare.file.close()
            self._spare = None
            self._disk.unlink(SPARE_PATH)
            self._count()

    def _extend(self, end: int) -> None:
        current = self._current
        if current is None:
            return
        segment_end = current.start + self._segment_bytes
        try:
            if self._current_reserved < self._segment_bytes:
                self._current_reserved = self._reserve(current.file, self._current_reserved, end - current.start)
            if end > segment_end:
                if self._spare is None:
                    self._spare = _Spare(self._disk.open(SPARE_PATH, create=True), 0, 0)
                self._spare.reserved = self._reserve(self._spare.file, self._spare.reserved, end - segment_end)
        except OSError as error:
            if error.errno in FULL:
                raise LogFullError(f"no space to reserve the log up to {end}: {error}") from error
            raise StorageError(f"reserving the log up to {end} failed: {error}") from error
        finally:
            self._count()

    def _reserve(self, file: File, reserved: int, wanted: int) -> int:
        """Reserve a file up to `wanted`, a step more where there is room; returns the new end."""
        wanted = min(wanted, self._segment_bytes)
        if wanted <= reserved:
            return reserved
        generous = min(self._segment_bytes, max(wanted, reserved + RESERVE_STEP_BYTES))
        try:
            file.reserve(reserved, generous - reserved)
        except OSError as error:
            if generous == wanted or error.errno not in FULL:
                raise
            file.reserve(reserved, wanted - reserved)
            return wanted
        return generous

    def _count(self) -> None:
        if self._current is not None:
            self.reserved_end = self._current.start + self._current_reserved
            if self._current_reserved >= self._segment_bytes and self._spare is not None:
                self.reserved_end += self._spare.reserved
