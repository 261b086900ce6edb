"""Segment files of the log. They are opened when used, and their users are counted.

A segment is `commitlog/<20 digits>`, named by its start position. A file may be longer than its content, because space
is reserved ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from threading import Lock

from dledger.errors import BusyError, TrimmedError
from dledger.store.disk import OUT_OF_FILES, Disk, File
from dledger.store.open_files import OpenFiles
from dledger.store.unreadable import read_error
from dledger_base.invariants import invariant
from dledger_base.loop_guard import excepted

DIRECTORY = "commitlog"


def segment_name(start: int) -> str:
    """Return the file name of the segment (or index or snapshot file) that starts at a position."""
    return f"{start:020d}"


def segment_path(start: int) -> str:
    """Return the path of the segment that starts at a position."""
    return f"{DIRECTORY}/{start:020d}"


def list_positions(disk: Disk, directory: str) -> list[int]:
    """Return the positions that name files of a directory, ascending. Other names are skipped."""
    if not disk.exists(directory):
        return []
    return sorted(int(name) for name in disk.listdir(directory) if len(name) == 20 and name.isdecimal())


class Segment:
    """One segment file, opened when it is used. A worker closes a retired segment (`close`) once nobody holds it.

    `first_index` is the index of the first entry that starts in it (or would). With `files`, its file may be closed
    while nobody holds it, unless it is kept open. It is then opened again when it is used.
    """

    __slots__ = (
        "_disk",
        "_file",
        "_files",
        "_holders",
        "_is_discarded",
        "_is_kept_open",
        "_is_retired",
        "_lock",
        "first_index",
        "start",
    )

    def __init__(
        self, disk: Disk, start: int, first_index: int, file: File | None = None, *, files: OpenFiles | None = None
    ) -> None:
        self.start = start
        self.first_index = first_index
        self._disk = disk
        self._file = file
        self._files = files
        self._is_kept_open = False
        self._holders = 0
        self._is_retired = False
        self._is_discarded = False
        self._lock = Lock()

    @property
    def file(self) -> File:
        """The open file. Off the event loop, use it between `acquire` and `release` only."""
        file = self._file
        if file is not None:
            return file
        with self._lock:
            file = self._open()
        self._note_opened()
        return file

    def _open(self) -> File:
        if self._file is None:
            self._file = self._disk.open(segment_path(self.start))
        return self._file

    def _note_opened(self) -> None:
        if self._files is not None and not self._is_kept_open:
            self._files.note_opened(self)

    def keep_open(self) -> None:
        """Keep the file open until `allow_close`, because the segment is being written.

        A sync through another descriptor might not report that the system had failed to write something before.
        """
        with self._lock:
            self._is_kept_open = True
        if self._files is not None:
            self._files.note_closed(self)

    def allow_close(self) -> None:
        """Let the file be closed to make room for others, because everything in it is durable. Memory only."""
        if self._is_kept_open:
            self._is_kept_open = False
            if self._file is not None and self._files is not None:
                self._files.add(self)

    def close_idle(self) -> bool:
        """Close the file unless it is in use, and return whether it was closed. Never waits for the lock."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._holders or self._is_kept_open:
                return False
            file, self._file = self._file, None
        finally:
            self._lock.release()
        if self._files is not None:
            self._files.note_closed(self)
        if file is not None:
            file.close()
        return file is not None

    @property
    def held(self) -> bool:
        """True if a reader or a pin holds the file."""
        return self._holders > 0

    @property
    def retired(self) -> bool:
        """True if the segment has left the log."""
        return self._is_retired

    def acquire(self) -> File:
        """Keep the file open, and readable after an unlink. Blocks if it has to be opened first.

        Raises `TrimmedError` if it is gone, and `BusyError` if the process may open no more files now. Raises
        `CorruptionError` or `StorageError` if it cannot be opened.
        """
        with self._lock:
            if self._is_retired and not self._holders:
                raise TrimmedError(f"the segment at {self.start} was trimmed")
            was_open = self._file is not None
            try:
                file = self._open()
            except FileNotFoundError as error:
                # the file was unlinked after the segment was asked for and before it could be opened
                if self._is_retired:
                    raise TrimmedError(f"the segment at {self.start} was trimmed") from error
                raise read_error(f"opening {segment_path(self.start)}", error) from error
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    raise BusyError(f"{segment_path(self.start)} cannot be opened now: {error}") from error
                raise read_error(f"opening {segment_path(self.start)}", error) from error
            self._holders += 1
        if not was_open:
            self._note_opened()
        elif self._files is not None:
            self._files.note_used(self)
        return file

    def acquire_open(self) -> File | None:
        """Acquire the file like `acquire`, or return None if it is not open, or if another thread may be opening it.

        Never blocks, because an event loop calls this. A thread that opens the file holds the lock while it waits for
        the disk.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._file is None or self._is_retired:
                return None
            self._holders += 1
            file = self._file
        finally:
            self._lock.release()
        if self._files is not None:
            self._files.note_used(self)
        return file

    def release(self) -> None:
        """Undo one `acquire`."""
        with self._lock:
            self._holders -= 1
            if self._is_discarded:
                with excepted("the log is closed, so nobody is served any more"):
                    self._close_if_unused()

    def retire(self) -> None:
        """Note that the segment left the log. It gets no new reader once nobody holds it."""
        self._is_retired = True

    def close(self) -> bool:
        """Close a retired segment's file; False if somebody holds it. Blocks: the last close gives the space back."""
        with self._lock:
            self._close_if_unused()
            return self._file is None

    def discard(self) -> None:
        """Retire the segment because the log is closed, and close the file now or with the last `release`. Blocks."""
        with self._lock:
            self._is_retired = self._is_discarded = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._holders and self._file is not None:
            self._file.close()
            self._file = None
            if self._files is not None:
                self._files.note_closed(self)


class SegmentTable:
    """The log's segments in order of position.

    Changes replace the tuple, so that readers on other threads always see a consistent one.
    """

    __slots__ = ("_starts", "segment_bytes", "segments")

    def __init__(self, segment_bytes: int, segments: Sequence[Segment]) -> None:
        self.segment_bytes = segment_bytes
        self.segments: tuple[Segment, ...] = ()
        self._starts: tuple[list[int], tuple[Segment, ...]] = ([], ())
        self._replace(tuple(segments))

    def _replace(self, segments: tuple[Segment, ...]) -> None:
        self.segments = segments
        self._starts = ([segment.start for segment in segments], segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments)

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self.segments[0]

    @property
    def last(self) -> Segment:
        """The segment that is being written."""
        return self.segments[-1]

    def add(self, segment: Segment) -> None:
        """Append the next segment."""
        invariant(segment.start == self.last.start + self.segment_bytes, "segments are contiguous", start=segment.start)
        self._replace((*self.segments, segment))

    def remove_below(self, position: int) -> list[Segment]:
        """Remove and return the segments that end at or below a position. The last segment always stays."""
        keep = self._place_of(position)
        removed = self.segments[:keep]
        self._replace(self.segments[keep:])
        return list(removed)

    def remove_above(self, position: int) -> list[Segment]:
        """Remove and return, newest first, the segments that start above a position."""
        keep = bisect_right(self._starts[0], position)
        removed = self.segments[keep:]
        self._replace(self.segments[:keep])
        return list(reversed(removed))

    def clear(self) -> list[Segment]:
        """Remove and return all segments."""
        removed = self.segments
        self._replace(())
        return list(removed)

    def _place_of(self, position: int) -> int:
        return max(0, bisect_right(self._starts[0], position) - 1)

    def containing(self, position: int) -> Segment:
        """Return the segment that holds a byte.

        Raises `TrimmedError` below the first, `InvariantError` above the last.
        """
        starts, segments = self._starts
        at = bisect_right(starts, position) - 1
        if at < 0:
            first = starts[0] if starts else "of a log that is being replaced"
            raise TrimmedError(f"position {position} is below the first kept position {first}")
        segment = segments[at]
        invariant(position < segment.start + self.segment_bytes, "a position lies in the log", position=position)
        return segment

    def of_index(self, index: int) -> Segment:
        """Return the segment in which an entry starts. Raises `TrimmedError` below the first."""
        segments = self.segments
        at = bisect_right(segments, index, key=lambda segment: segment.first_index) - 1
        if at < 0:
            first = segments[0].first_index if segments else "of a log that is being replaced"
            raise TrimmedError(f"index {index} is below the first kept index {first}")
        return segments[at]

    def overlapping(self, begin: int, end: int) -> list[Segment]:
        """Return the segments that hold bytes of a range. For an empty range it is the segment that holds `begin`."""
        starts, segments = self._starts
        return list(
            segments[max(0, bisect_right(starts, begin) - 1) : max(1, bisect_right(starts, max(begin, end - 1)))]
        )
