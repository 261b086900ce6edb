"""Segment files of the log, kept open and counted.

A segment is `commitlog/<20 digits>`, named by its start position.  A file may be longer than what is written to it
(space reserved ahead).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from threading import Lock

from dledger.errors import StorageError, TrimmedError
from dledger.invariants import invariant
from dledger.loop_guard import excepted
from dledger.store.disk import Disk, File

DIRECTORY = "commitlog"


def segment_name(start: int) -> str:
    """The file name of the segment (or index or snapshot file) that starts at a position."""
    return f"{start:020d}"


def segment_path(start: int) -> str:
    """The path of the segment that starts at a position."""
    return f"{DIRECTORY}/{start:020d}"


def list_positions(disk: Disk, directory: str) -> list[int]:
    """The positions that name files of a directory, ascending; other names are passed over."""
    if not disk.exists(directory):
        return []
    return sorted(int(name) for name in disk.listdir(directory) if len(name) == 20 and name.isdecimal())


class Segment:
    """One segment file, opened when first used.  Retired, it is closed by a worker (`close`) once nobody holds it.

    `first_index` is the index of the first entry that starts in it (or would).
    """

    __slots__ = ("_discarded", "_disk", "_file", "_holders", "_lock", "_retired", "first_index", "start")

    def __init__(self, disk: Disk, start: int, first_index: int, file: File | None = None) -> None:
        self.start = start
        self.first_index = first_index
        self._disk = disk
        self._file = file
        self._holders = 0
        self._retired = False
        self._discarded = False
        self._lock = Lock()

    @property
    def file(self) -> File:
        """The open file.  Off the event loop, only between `acquire` and `release`."""
        file = self._file
        if file is not None:
            return file
        with self._lock:
            return self._opened()

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(segment_path(self.start))
        return self._file

    @property
    def held(self) -> bool:
        """Whether a reader or a pin holds the file."""
        return self._holders > 0

    @property
    def retired(self) -> bool:
        """Whether the segment left the log."""
        return self._retired

    def acquire(self) -> File:
        """Keep the file open (and readable after an unlink).  Blocks where it has to be opened first.

        Raises `TrimmedError` if it is gone, `StorageError` if it cannot be opened.
        """
        with self._lock:
            if self._retired and not self._holders:
                raise TrimmedError(f"the segment at {self.start} was trimmed")
            try:
                file = self._opened()
            except OSError as error:
                raise StorageError(f"opening {segment_path(self.start)} failed: {error}") from error
            self._holders += 1
            return file

    def acquire_open(self) -> File | None:
        """As `acquire`, but None if the file would have to be opened first, or somebody may be opening it just now.

        Never blocks: whoever opens the file holds the lock for as long as the disk takes, and an event loop asks here.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._file is None or self._retired:
                return None
            self._holders += 1
            return self._file
        finally:
            self._lock.release()

    def release(self) -> None:
        """Undo one `acquire`."""
        with self._lock:
            self._holders -= 1
            if self._discarded:
                with excepted("the log is closed, and who had it open serves nobody"):
                    self._close_if_unused()

    def retire(self) -> None:
        """The segment left the log: nobody new can read it once nobody holds it."""
        self._retired = True

    def close(self) -> bool:
        """Close a retired segment's file; False if somebody holds it.  Blocks: the last one gives its space back."""
        with self._lock:
            self._close_if_unused()
            return self._file is None

    def discard(self) -> None:
        """The log is closed: retire the segment, and close the file now or with the last `release`.  Blocks."""
        with self._lock:
            self._retired = self._discarded = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and not self._holders and self._file is not None:
            self._file.close()
            self._file = None


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
        """The oldest one."""
        return self.segments[0]

    @property
    def last(self) -> Segment:
        """The one that is written."""
        return self.segments[-1]

    def add(self, segment: Segment) -> None:
        """Append the next segment."""
        invariant(segment.start == self.last.start + self.segment_bytes, "segments are contiguous", start=segment.start)
        self._replace((*self.segments, segment))

    def remove_below(self, position: int) -> list[Segment]:
        """Take out and return the segments that end at or below a position; the last one always stays."""
        keep = self._at(position)
        removed = self.segments[:keep]
        self._replace(self.segments[keep:])
        return list(removed)

    def remove_above(self, position: int) -> list[Segment]:
        """Take out and return, newest first, the segments that start above a position."""
        keep = bisect_right(self._starts[0], position)
        removed = self.segments[keep:]
        self._replace(self.segments[:keep])
        return list(reversed(removed))

    def clear(self) -> list[Segment]:
        """Take out and return all."""
        removed = self.segments
        self._replace(())
        return list(removed)

    def _at(self, position: int) -> int:
        return max(0, bisect_right(self._starts[0], position) - 1)

    def containing(self, position: int) -> Segment:
        """The segment in which a byte lies.  Raises `TrimmedError` below the first, `InvariantError` above the last."""
        starts, segments = self._starts
        at = bisect_right(starts, position) - 1
        if at < 0:
            first = starts[0] if starts else "of a log that is being replaced"
            raise TrimmedError(f"position {position} is below the first kept position {first}")
        segment = segments[at]
        invariant(position < segment.start + self.segment_bytes, "a position lies in the log", position=position)
        return segment

    def of_index(self, index: int) -> Segment:
        """The segment in which an entry starts.  Raises `TrimmedError` below the first."""
        segments = self.segments
        at = bisect_right(segments, index, key=lambda segment: segment.first_index) - 1
        if at < 0:
            first = segments[0].first_index if segments else "of a log that is being replaced"
            raise TrimmedError(f"index {index} is below the first kept index {first}")
        return segments[at]

    def overlapping(self, begin: int, end: int) -> list[Segment]:
        """The segments that hold bytes of a range; the one that holds `begin` even if the range is empty."""
        starts, segments = self._starts
        return list(
            segments[max(0, bisect_right(starts, begin) - 1) : max(1, bisect_right(starts, max(begin, end - 1)))]
        )
