"""Space for entries to come: reserved ahead, so that a full disk is met here and never by a write of an entry.

Reserved are the current segment in steps, then a spare file `commitlog/spare` that becomes the next segment.  In the
background the spare is filled with zeros (overwriting written blocks syncs up to twice as fast as first writes), unless
a trimmed segment is recycled as the spare.  What a recycled file holds has positions below the log's first one, so that
no recovery can take it for entries of its new place.
"""

from __future__ import annotations

import errno
from threading import Lock

from dledger.errors import LogFullError, StorageError
from dledger.store.disk import Disk, File
from dledger.store.segments import DIRECTORY, Segment, segment_path

SPARE_PATH = f"{DIRECTORY}/spare"
RESERVE_STEP_BYTES = 64 << 20
FILL_STEP_BYTES = 1 << 20
FILL_FROM_SHARE = 8
"""The spare is filled once 1/8 of the current segment is written: a small log never pays for it."""

_ZEROS = bytes(FILL_STEP_BYTES)


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

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self.reserved_end = 0
        """Log position up to which entries can be written, in the current segment and then in the spare."""
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._current: Segment | None = None
        self._current_reserved = 0
        self._spare: _Spare | None = None
        self._lock = Lock()
        disk.unlink(SPARE_PATH)

    def start_segment(self, segment: Segment, reserved: int) -> None:
        """A segment becomes the current one; its first `reserved` bytes are safe to write."""
        with self._lock:
            self._current = segment
            self._current_reserved = reserved
            self._count()

    def cover(self, end: int) -> None:
        """Reserve up to a log position, at most to the end of the segment after the current one.

        Raises `LogFullError` if there is no space; what was reserved before stays.
        """
        if end > self.reserved_end:
            with self._lock:
                self._extend(end)

    def take_next(self, start: int) -> tuple[File, int]:
        """The file of the next segment, under its name (not yet durable), and how much of it is reserved."""
        with self._lock:
            spare, self._spare = self._spare, None
            if spare is None:
                return self._disk.open(segment_path(start), create=True), 0
            spare.close_filler()
            if not spare.durable_name:
                self._disk.sync_dir(DIRECTORY)
            self._disk.rename(SPARE_PATH, segment_path(start))
            return spare.file, spare.reserved

    def recycle(self, segment: Segment) -> bool:
        """Make a trimmed segment the spare, if it is whole, unused and the spare is not ready; else do nothing."""
        with self._lock:
            if segment.held or (self._spare is not None and self._spare.filled >= self._segment_bytes):
                return False
            file = self._disk.open(segment_path(segment.start))
            if file.size() != self._segment_bytes:
                file.close()
                return False
            self._drop_spare()
            self._disk.rename(segment_path(segment.start), SPARE_PATH)
            self._spare = _Spare(file, self._segment_bytes, self._segment_bytes)
            self._count()
            return True

    def discard(self) -> None:
        """Drop the spare."""
        with self._lock:
            self._drop_spare()

    def close(self) -> None:
        """Close the spare's files; the next open removes it."""
        with self._lock:
            if self._spare is not None:
                self._spare.close_filler()
                self._spare.file.close()
                self._spare = None

    def prepare(self, budget_bytes: int, written_end: int, reserve_to: int) -> bool:
        """Reserve up to `reserve_to` and fill the spare, writing at most `budget_bytes`; True if there is more to do.

        `written_end` is where the log ends.  A full disk is no error here.  Raises `StorageError`.
        """
        try:
            self.cover(reserve_to)
        except LogFullError:
            return False
        while budget_bytes > 0:
            with self._lock:
                current = self._current
                if current is None or (written_end - current.start) * FILL_FROM_SHARE < self._segment_bytes:
                    return False
                try:
                    spare = self._settled_spare()
                    if spare.filled >= self._segment_bytes:
                        return False
                    step = min(FILL_STEP_BYTES, budget_bytes, self._segment_bytes - spare.filled)
                    if spare.filler is None:
                        spare.filler = self._disk.open(SPARE_PATH, write_through=True)
                    spare.filler.pwrite(memoryview(_ZEROS)[:step], spare.filled)
                except OSError as error:
                    if error.errno in (errno.ENOSPC, errno.EDQUOT):
                        return False
                    raise StorageError(f"filling {SPARE_PATH} failed: {error}") from error
                spare.filled += step
                spare.reserved = max(spare.reserved, spare.filled)
                self._count()
            budget_bytes -= step
        return True

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
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
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
            if generous == wanted or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            file.reserve(reserved, wanted - reserved)
            return wanted
        return generous

    def _count(self) -> None:
        if self._current is not None:
            self.reserved_end = self._current.start + self._current_reserved
            if self._current_reserved >= self._segment_bytes and self._spare is not None:
                self.reserved_end += self._spare.reserved
