"""Space for entries to come: reserved ahead, so that a full disk is met here and never by a write of an entry.

Reserved are the current segment in steps, then the file of the next one, which has its name from the beginning: the log
goes on in it without a word to the disk, for an event loop writes entries and waits for nothing else of a disk.  Both,
and the units of their index files, are a worker's to reserve.  In the background what comes next of the current
segment, and then the next one, are filled with zeros (overwriting written blocks syncs up to twice as fast as first
writes), unless a trimmed segment is recycled as the next one.  What a recycled file holds has positions below the log's
first one, so that no recovery can take it for entries of its new place.  A segment that a truncation takes off the log
becomes the next one, too, erased: on a full disk its space would not come back.

Entries that come to where a step of filling is being written have to wait for it.  So filling goes on further ahead
where they caught up with it, and a log that grows much faster than it could be filled is not filled.

A start gives the next segment and the rest of the current one back, unless the disk is so short of space that others
might take it: then it keeps what is kept back for no-ops, membership entries and trims.

Zeros must never meet an entry: in the current segment they are written at or above `free_end` only, entries below it
only, and `free_end` never comes down to what was claimed; the next segment is not filled once an entry of it is.
"""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from dledger.errors import LogFullError, StorageError
from dledger.invariants import invariant, known
from dledger.store.disk import FULL, Disk, File
from dledger.store.erase import erase
from dledger.store.index import IndexFiles
from dledger.store.segments import DIRECTORY, Segment, segment_path

SHORT_OF_SPACE_RESERVES = 4
"""If less than so many times what is kept back is free, a start does not give it away and take it again."""
RESERVE_STEP_BYTES = 64 << 20
FILL_STEP_BYTES = 1 << 20
FILL_FROM_SHARE = 8
"""The next segment is filled once 1/8 of the current one is written: a small log never pays for it."""
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


class Need(NamedTuple):
    """What entries need: the log reserved up to a position, and of index files (segment start, units) each."""

    end: int
    units: tuple[tuple[int, int], ...]


def kept_through_a_start(disk: Disk, reserve_bytes: int, reserve_units: int) -> KeptBack:
    """What is kept back, if the disk is so full that others might take it; else nothing, for erasing it takes time."""
    free, _ = disk.usage(DIRECTORY)
    return KeptBack(reserve_bytes, reserve_units) if free < SHORT_OF_SPACE_RESERVES * reserve_bytes else NOTHING_KEPT


class _Ahead:
    """A segment's file, in which entries go on: `reserved` bytes are safe to write, the first `filled` were before."""

    __slots__ = ("file", "filled", "filler", "reserved", "start")

    def __init__(self, start: int, file: File, reserved: int, filled: int) -> None:
        self.start = start
        self.file = file
        self.filler: File | None = None
        """As `file`, for zeros: opened with `write_through`."""
        self.reserved = reserved
        self.filled = filled

    def close_filler(self) -> None:
        if self.filler is not None:
            self.filler.close()
            self.filler = None


class Space:
    """What is reserved of the current segment, the next one and their index files.

    `claim` and `roll` are called on the event loop and never block; everything else blocks and is a worker's.  Workers
    take turns (`_working`, held while they use the disk); what they share with the loop is under `_lock`, which nobody
    holds while he does.
    """

    def __init__(self, disk: Disk, index: IndexFiles, segment_bytes: int) -> None:
        self.reserved_end = 0
        """Log position up to which there is space for entries, in the current segment and then in the next."""
        self.free_end = 0
        """Log position up to which no zeros are written into the current segment."""
        self._disk = disk
        self._index = index
        self._segment_bytes = segment_bytes
        self._current: _Ahead | None = None
        self._next: _Ahead | None = None
        self._filling: _Ahead | None = None
        """Where a step of filling is under way."""
        self._claimed_end = 0
        """The highest position for which entries have claimed space: what is under it is theirs."""
        self._fill_from = 0
        self._caught_up = False
        self._prepared_from = 0
        self._lead = max(1, segment_bytes // FILL_LEAD_SHARE)
        self._unused: list[_Ahead] = []
        """Their fillers are to be closed."""
        self._working = Lock()
        self._lock = Lock()

    # What the event loop asks

    def claim(self, end: int, reserved_to: int) -> bool:
        """Let entries be written up to a log position; False if it is not reserved up to `reserved_to`, or if a step of
        filling is under way below `end`: a `reserve` ends behind that.

        What was claimed stays reserved until it is written, through a truncation, too.
        """
        if reserved_to > self.reserved_end:
            return False
        if end > self.free_end and not self._leave(end):
            return False
        self._claimed_end = max(self._claimed_end, end)
        return True

    def _leave(self, end: int) -> bool:
        """Leave everything below a log position to entries, and some more."""
        self._caught_up = True
        with self._lock:
            current = self._current
            if current is None or end > self.reserved_end or self._filling is current:
                return False
            segment_end = current.start + self._segment_bytes
            if end > segment_end:
                if self._filling is not None:
                    return False
                self._claimed_end = max(self._claimed_end, end)  # from here on the next segment is not filled
            self.free_end = max(self.free_end, min(end + self._lead, segment_end))
        return True

    def roll(self, first_index: int) -> Segment:
        """Go on in the next segment, some of which is claimed: memory only.  Its first entry has `first_index`."""
        with self._lock:
            before = known(self._current, "a log that is being rewritten does not roll")
            current = known(self._next, "the next segment is there before an entry of it", after=before.start)
            invariant(self._filling is None, "no zeros are written below a claim", start=current.start)
            self._unused.append(before)
            self._next = None
            self._go_on_in(current)
        return Segment(self._disk, current.start, first_index, current.file)

    # What workers do

    def start_segment(self, segment: Segment, reserved: int, filled: int) -> None:
        """A segment becomes the current one, or was cut: `reserved` bytes are safe to write, `filled` were before."""
        with self._working:
            self._close_fillers()
            with self._lock:
                self._go_on_in(_Ahead(segment.start, segment.file, reserved, filled))

    def _go_on_in(self, current: _Ahead) -> None:
        """Make a file the current segment's; under the lock."""
        self._current = current
        segment_end = current.start + self._segment_bytes
        self.free_end = min(max(current.start + current.filled, self._claimed_end) + self._lead, segment_end)
        self._fill_from = self.free_end
        self._caught_up = False
        self._count()

    def reserve(self, need: Need) -> None:
        """Reserve what entries need, at most to the end of the segment after the current one.

        Nothing is done while the log is being rewritten.  Raises `LogFullError` if there is no space (what was reserved
        before stays), `StorageError`.
        """
        with self._working:
            if self._current is None:
                return
            for start, units in need.units:
                self._index.reserve(start, units)
            self._cover(need.end)

    def cover(self, end: int) -> None:
        """Reserve up to a log position, as `reserve` does."""
        with self._working:
            self._cover(end)

    def recycle(self, segment: Segment) -> bool:
        """Make a trimmed segment the next one, if it is whole and unused, and what stands there is neither claimed nor
        ready; else do nothing.
        """
        with self._working:
            file = self._disk.open(segment_path(segment.start))
            whole = file.size() == self._segment_bytes and not segment.held
            taken = self._take_next_away() if whole else None
            if taken is None:
                file.close()
                return False
            start, before = taken
            # The log cannot go on there before `_put_next`, for without a next segment nothing behind this one's end
            # is reserved: else this would take an entry's file away from under it.
            self._disk.rename(segment_path(segment.start), segment_path(start))
            self._put_next(_Ahead(start, file, self._segment_bytes, self._segment_bytes))
            if before is not None:
                before.close_filler()
                before.file.close()
        return True

    def _take_next_away(self) -> tuple[int, _Ahead | None] | None:
        """The next segment's start and file, which is no longer known as one; None if it must stay."""
        with self._lock:
            current, before = self._current, self._next
            if current is None or (before is not None and before.filled >= self._segment_bytes):
                return None
            start = current.start + self._segment_bytes
            if self._claimed_end > start:
                return None
            self._next = None
            self._count()
        return start, before

    def _put_next(self, ahead: _Ahead) -> None:
        with self._lock:
            self._next = ahead
            self._count()

    def reclaim(self, segment: Segment, written: int) -> None:
        """Make the segment behind the one in which a truncated log ends the next one, erased.

        Its first `written` bytes hold entries.  The current segment goes with it or before it, so nothing is reserved
        or filled until `start_segment`.  Where the next segment so far is larger, or this one has no space to be erased
        in, that one takes its place.
        """
        with self._working:
            self._close_fillers()
            with self._lock:
                before, self._current, self._next = self._next, None, None
            path = segment_path(segment.start)
            file = self._disk.open(path)
            size = file.size()
            if (before is None or before.reserved < size) and not erase(file, 0, written):
                size = written = 0
            if before is not None and before.reserved >= size:
                file.close()
                self._disk.rename(segment_path(before.start), path)
                self._next = _Ahead(segment.start, before.file, before.reserved, before.filled)
                return
            if before is not None:
                before.file.close()
                self._disk.unlink(segment_path(before.start))
            self._next = _Ahead(segment.start, file, size, written)

    def keep_next(self, start: int) -> None:
        """Go on with what a recovery has kept of the next segment, if it has; none of that counts as reserved."""
        with self._working:
            if self._disk.exists(segment_path(start)):
                self._next = _Ahead(start, self._disk.open(segment_path(start)), 0, 0)

    def close(self) -> None:
        """Close the next segment's file, and reserve and fill nothing any more; the next open removes it."""
        with self._working:
            self._close_fillers()
            with self._lock:
                before, self._current, self._next = self._next, None, None
                self._claimed_end = 0
            if before is not None:
                before.file.close()

    def prepare(self, budget_bytes: int, written_end: int, reserve_to: int) -> bool:
        """Reserve up to `reserve_to` and fill what comes next and the next segment, writing at most `budget_bytes`.

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
            with self._working:
                try:
                    step = self._fill(budget_bytes, written_end)
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
            current = self._current
            if current is not None and written_end >= self._fill_from:
                end = written_end + self._segment_bytes // FILL_AHEAD_SHARE // 2
                self.free_end = max(self.free_end, min(end, current.start + self._segment_bytes))
                self._caught_up = False

    def _fill(self, budget_bytes: int, written_end: int) -> int:
        """Fill a step of the current segment, or of the next one; returns its size, 0 if nothing is due."""
        self._close_unused()
        if self._current is not None and self._next is None and self._wants_next_filled(written_end):
            self._make_next()
        with self._lock:
            ahead, offset, step = self._next_step(min(FILL_STEP_BYTES, budget_bytes), written_end)
            if ahead is None:
                return 0
            self._filling = ahead
        try:
            if ahead.filler is None:
                ahead.filler = self._disk.open(segment_path(ahead.start), write_through=True)
            ahead.filler.pwrite(memoryview(_ZEROS)[:step], offset)
        except OSError:
            step = 0
            raise
        finally:
            with self._lock:
                self._filling = None
                self._filled(ahead, offset + step)
        return step

    def _next_step(self, step: int, written_end: int) -> tuple[_Ahead | None, int, int]:
        """Where zeros are due, at which offset and how many; under the lock."""
        current, following = self._current, self._next
        if current is None or self._caught_up:
            return None, 0, 0
        target = min(written_end + self._segment_bytes // FILL_AHEAD_SHARE, current.start + current.reserved)
        if target > self.free_end and written_end >= self._fill_from:
            return current, self.free_end - current.start, min(step, target - self.free_end)
        if following is None or not self._wants_next_filled(written_end):
            return None, 0, 0
        step = min(step, self._segment_bytes - following.filled)
        return (following, following.filled, step) if step else (None, 0, 0)

    def _wants_next_filled(self, written_end: int) -> bool:
        current = self._current
        return (
            current is not None
            and (written_end - current.start) * FILL_FROM_SHARE >= self._segment_bytes
            and self._claimed_end <= current.start + self._segment_bytes
        )

    def _filled(self, ahead: _Ahead, end: int) -> None:
        """A step was written up to an offset; under the lock."""
        if ahead is self._current:
            self.free_end = max(self.free_end, ahead.start + end)
        else:
            ahead.filled = max(ahead.filled, end)
            ahead.reserved = max(ahead.reserved, end)
            self._count()

    def _make_next(self) -> _Ahead:
        """The next segment's file, made if there is none.

        Both are looked at under the lock. 1. A roll takes the next segment. 2. This finds none, and the segment that
        was current before. 3. The file that has just become the current segment is taken for the next one, and filled
        with zeros from its beginning: over entries.
        """
        with self._lock:
            if self._next is not None:
                return self._next
            start = known(self._current, "the log is not being rewritten").start + self._segment_bytes
        # The log does not go on behind the current segment before this one is there, so that one stays the same.
        ahead = _Ahead(start, self._disk.open(segment_path(start), create=True), 0, 0)
        self._put_next(ahead)
        return ahead

    def _close_fillers(self) -> None:
        self._close_unused()
        for ahead in (self._current, self._next):
            if ahead is not None:
                ahead.close_filler()

    def _close_unused(self) -> None:
        with self._lock:
            unused, self._unused = self._unused, []
        for ahead in unused:
            ahead.close_filler()

    def _cover(self, end: int) -> None:
        current = self._current
        if current is None or end <= self.reserved_end:
            return
        segment_end = current.start + self._segment_bytes
        try:
            if current.reserved < self._segment_bytes:
                self._extend(current, end - current.start)
            if end > segment_end:
                ahead = self._make_next()
                self._extend(ahead, end - ahead.start)
        except OSError as error:
            if error.errno in FULL:
                raise LogFullError(f"no space to reserve the log up to {end}: {error}") from error
            raise StorageError(f"reserving the log up to {end} failed: {error}") from error

    def _extend(self, ahead: _Ahead, wanted: int) -> None:
        """Reserve a file up to `wanted`, a step more where there is room."""
        wanted, reserved = min(wanted, self._segment_bytes), ahead.reserved
        if wanted <= reserved:
            return
        end = min(self._segment_bytes, max(wanted, reserved + RESERVE_STEP_BYTES))
        try:
            ahead.file.reserve(reserved, end - reserved)
        except OSError as error:
            if end == wanted or error.errno not in FULL:
                raise
            ahead.file.reserve(reserved, wanted - reserved)
            end = wanted
        with self._lock:
            ahead.reserved = end
            self._count()

    def _count(self) -> None:
        """Tell up to where there is space; under the lock."""
        if self._current is not None:
            self.reserved_end = self._current.start + self._current.reserved
            if self._current.reserved >= self._segment_bytes and self._next is not None:
                self.reserved_end += self._next.reserved
