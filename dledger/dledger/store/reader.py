"""Reading half of the log: entries by index and bytes by position, on any thread.

Data that changes under a reader (segments, window, terms, damage) is replaced as a whole by the writing half, never
altered in place. A segment that is being read cannot be closed meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple, Self, TypeVar

from dledger.errors import CorruptionError, TrimmedError
from dledger.format import HEADER_BYTES, link, parse_run
from dledger.store.damage import Damage
from dledger.store.disk import Disk, DiskSpace
from dledger.store.index import IndexFiles, IndexUnit
from dledger.store.scan import Cursor, header_at, headers_in
from dledger.store.segments import DIRECTORY, Segment, SegmentTable, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.unreadable import is_unreadable, read_error
from dledger.store.window import RecentWindow, TermTable
from dledger.types import EntryMeta, SnapshotMeta
from dledger_base.invariants import invariant

T = TypeVar("T")


class SegmentInfo(NamedTuple):
    """One kept segment, by log positions."""

    start_position: int
    end_position: int


class OpenFile(NamedTuple):
    """Open file of the log, with its descriptor and two positions.

    `start` is where the file begins. `end` is where the file, or the log in it, ends.
    """

    descriptor: int
    start: int
    end: int


class Pin:
    """Keeps one segment readable, even if it is trimmed. A context manager; a second release does nothing."""

    __slots__ = ("_is_held", "_segment", "_segment_bytes")

    def __init__(self, segment: Segment, segment_bytes: int) -> None:
        segment.acquire()
        self._segment = segment
        self._segment_bytes = segment_bytes
        self._is_held = True

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the pinned segment, by log position. Raises `CorruptionError` or `StorageError`."""
        offset = position - self._segment.start
        invariant(
            self._is_held and 0 <= offset <= self._segment_bytes - size, "a pin reads its segment", position=position
        )
        try:
            return self._segment.file.pread(size, offset)
        except OSError as error:
            raise read_error(f"reading {size} bytes at {position}", error) from error

    def release(self) -> None:
        """Release the segment."""
        if self._is_held:
            self._is_held = False
            self._segment.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LogReader:
    """A log that can be read. `dledger.store.log.LogStore` also writes, and maintains these fields.

    The kept entries are `first_index` to `last_index` (none if the last is below the first). `first_position` is the
    start of the first kept segment. `end_position` is where the last entry ends.
    """

    segment_bytes: int
    first_index: int
    last_index: int
    last_term: int
    last_chain: int
    first_position: int
    end_position: int
    snapshots: SnapshotStore
    _disk: Disk
    _index: IndexFiles
    _table: SegmentTable
    _recent: RecentWindow
    _terms: TermTable
    _damage: Damage

    def meta(self, index: int) -> EntryMeta:
        """Return the meta of a kept entry. The meta of an older entry is read from the disk, unverified.

        Raises `TrimmedError` below the first entry, and `CorruptionError` if the entry does not verify or cannot be
        read.
        """
        self._check_kept(index)
        recent = self._recent.get(index)
        if recent is not None:
            return recent
        try:
            return self._read_meta(index)
        except CorruptionError:
            self._require_kept(index)
            raise

    def _read_meta(self, index: int) -> EntryMeta:
        segment, unit = self._unit(index)
        file = segment.acquire()
        try:
            found = header_at(file, segment.start, unit.position)
        except OSError as error:
            raise read_error(f"reading entry {index} at {unit.position}", error) from error
        finally:
            segment.release()
        if found is None or found.index != index:
            raise CorruptionError(f"entry {index} is not at {unit.position}, where the index has it")
        return found

    def _end_before(self, index: int) -> tuple[int, int, int] | None:
        """Return (end position, term, chain crc) of the entry before `index`; None if that is unknown.

        After the last entry of a snapshot, the log continues at the snapshot's position, behind a blank if need be.
        """
        if index > self.last_index:
            return self.end_position, self.last_term, self.last_chain
        base = self._snapshot_before(index)
        if base is not None:
            return base.position, base.last_term, base.chain_crc
        if index > self.first_index:
            previous = self.meta(index - 1)
            return previous.end, previous.term, previous.chain_crc
        return (0, 0, 0) if self.first_position == 0 else None

    def _snapshot_before(self, index: int) -> SnapshotMeta | None:
        """Return the snapshot that ends before a kept entry and has that entry's position.

        A received snapshot may have the same last entry and another position. Its log continues at that position. This
        log has, after the same last entry, an entry that no other node has.
        """
        try:
            position = self.position_at(index)
        except CorruptionError:
            return None
        candidates = (meta for meta in self.snapshots.list() if meta.position == position)
        return next((meta for meta in candidates if meta.last_index == index - 1), None)

    def continues(self, base: SnapshotMeta) -> bool:
        """Return whether the first kept entry is the next one behind a snapshot, as its chain crc proves. Blocks.

        Raises as `read`.
        """
        first = self.meta(self.first_index)
        header = self.read(first.position, HEADER_BYTES)
        return (first.position, first.index, first.chain_crc) == (
            base.position,
            base.last_index + 1,
            link(header, 0, base.chain_crc),
        )

    def _cursor_at(self, position: int, index: int) -> Cursor:
        previous = self._end_before(index)
        return (
            Cursor(position, index, 0, None) if previous is None else Cursor(position, index, previous[1], previous[2])
        )

    def held_meta(self, index: int) -> EntryMeta | None:
        """Return the meta of one of the last entries, from memory; None for any other entry."""
        return self._recent.get(index)

    def term_at(self, index: int) -> int:
        """Return the term of a kept entry, from memory. Raises `TrimmedError` below the first entry."""
        self._check_kept(index)
        term = self._terms.term_at(index)
        self._check_kept(index)
        return term

    def position_at(self, index: int) -> int:
        """Return where a kept entry starts, or after the last entry, where the next is expected. Raises as `meta`."""
        last_index = self.last_index  # read once: the end of the log may be cut off meanwhile
        if index == last_index + 1:
            return self.end_position
        self._check_kept(index, last_index)
        damaged = self._damage.range_of_entry(index)
        if damaged is not None and index == damaged.first_index:
            return damaged.start
        recent = self._recent.get(index)
        if recent is not None:
            return recent.position
        try:
            return self._unit(index)[1].position
        except CorruptionError:
            self._require_kept(index)
            raise

    def index_at(self, position: int) -> int:
        """Return the index of the last entry that starts at or before `position`. That entry or a blank holds the byte.

        In a corrupt range it is the range's first index. Raises `TrimmedError` below the first entry.
        """
        damaged = self._damage.range_at(position)
        if damaged is not None:
            return damaged.first_index
        segment = self._table.containing(position)
        low, high = segment.first_index, self._last_index_of(segment)
        while low < high:
            middle = (low + high + 1) // 2
            damaged = self._damage.range_of_entry(middle)
            start = self.position_at(middle) if damaged is None else damaged.start
            if start <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def is_in_line(self, index: int) -> bool:
        """Return whether the index has an unreadable entry at its true position.

        That position is right behind the previous entry in the segment. For an entry in a known corrupt range this is
        True, because the start of that range is known.
        """
        if self._damage.range_of_entry(index) is not None:
            return True
        segment, unit = self._unit(index)
        if index == segment.first_index:
            return unit.position == segment.start
        return self._unit(index - 1)[1].end == unit.position

    def segment_start(self, index: int) -> int:
        """Return where the segment begins that holds an entry, or the last segment; from memory.

        Raises `TrimmedError`.
        """
        return self._table.of_index(index).start

    def first_index_of_segment(self, position: int) -> int:
        """Return the first index in the segment that holds a position.

        Raises `TrimmedError` below the first segment.
        """
        return self._table.containing(position).first_index

    def _last_index_of(self, segment: Segment) -> int:
        segments = self._table.segments
        place = bisect_right(segments, segment.start, key=_start)
        return (segments[place].first_index if place < len(segments) else self.last_index + 1) - 1

    def _check_kept(self, index: int, last_index: int | None = None) -> None:
        if index < self.first_index:
            raise TrimmedError(f"index {index} is below the first kept index {self.first_index}")
        last_index = self.last_index if last_index is None else last_index
        invariant(index <= last_index, "an entry is in the log", index=index, last_index=last_index)

    def _require_kept(self, index: int) -> None:
        """Raise `TrimmedError` if an entry left the log while it was read, so that the result was wrong."""
        if index < self.first_index:
            raise TrimmedError(f"index {index} was trimmed while it was read; the first kept one is {self.first_index}")
        self._table.of_index(index)

    def _unit(self, index: int) -> tuple[Segment, IndexUnit]:
        self._damage.refuse_index(index)
        segment = self._table.of_index(index)
        unit = self._index.read(segment.start, index - segment.first_index)
        if (
            unit is None
            or unit.index != index
            or not segment.start <= unit.position < segment.start + self.segment_bytes
        ):
            raise CorruptionError(f"the index unit of entry {index} in {segment_path(segment.start)} is not valid")
        return segment, unit

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the log inside one segment, as they are on disk. Blocks if they are not in the page cache.

        Raises `TrimmedError`, `StorageError`, or `CorruptionError` if the range is known not to verify or cannot be
        read.
        """
        segment = self._readable(position, size)
        file = segment.acquire()
        try:
            data = file.pread(size, position - segment.start)
        except OSError as error:
            raise read_error(f"reading {size} bytes at {position}", error) from error
        finally:
            segment.release()
        if len(data) != size:
            raise CorruptionError(f"{segment_path(segment.start)} ends at {position + len(data)}, inside the log")
        return data

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """Read like `read`, but return None if that would block or fails. On the event loop only.

        `read` raises the error that made it fail.
        """
        segment = self._readable(position, size)
        file = segment.acquire_open()
        if file is None:
            return None
        try:
            return file.pread_nowait(size, position - segment.start)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None
        finally:
            segment.release()

    def read_runs_nowait(self, runs: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Read several positions and sizes like `read_nowait`, None if any of them would block or fails.

        Runs of one segment share what is to be done for its file.
        """
        pieces: list[bytes] = []
        while len(pieces) < len(runs):
            more = self._read_of_segment(runs, len(pieces))
            if more is None:
                return None
            pieces += more
        return pieces

    def _read_of_segment(self, runs: Sequence[tuple[int, int]], first: int) -> list[bytes] | None:
        """Read the runs from number `first` on that follow each other in one segment, at least one."""
        segment = self._readable(*runs[first])
        file = segment.acquire_open()
        if file is None:
            return None
        begin, end = segment.start, segment.start + self.segment_bytes
        pieces: list[bytes] = []
        try:
            for position, size in islice(runs, first, None):
                if not begin <= position <= end - size:
                    break
                if self._damage.ranges:
                    self._damage.refuse(position, size)
                data = file.pread_nowait(size, position - begin)
                if data is None:
                    return None
                pieces.append(data)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return None
        finally:
            segment.release()
        return pieces

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        """Call `use` with the file that holds a position. The file stays open meanwhile. `use` must not block.

        Returns None without a call if the file is not open or has no descriptor. The same if the position is not in the
        log, or if any part of the log is damaged. On the event loop only.
        """
        if self._damage.ranges or position >= self.end_position:
            return None
        try:
            segment = self._table.containing(position)
        except TrimmedError:
            return None
        file = segment.acquire_open()
        if file is None:
            return None
        try:
            descriptor = file.descriptor
            if descriptor is None:
                return None
            end = min(segment.start + self.segment_bytes, self.end_position)
            return use(OpenFile(descriptor, segment.start, end))
        finally:
            segment.release()

    def _readable(self, position: int, size: int) -> Segment:
        if self._damage.ranges:
            self._damage.refuse(position, size)
        segment = self._table.containing(position)
        if position + size > segment.start + self.segment_bytes:  # the range may come from a file that has rotted
            raise CorruptionError(f"{size} bytes at {position} do not lie in one segment of the log: nothing is there")
        return segment

    def read_entries(self, first_index: int, max_bytes: int, *, verify: bool = False) -> tuple[list[EntryMeta], bytes]:
        """Return a run of entries from `first_index` on inside one segment, as metas and bytes.

        At most `max_bytes`, but at least one entry. With `verify`, bodies and chain are checked, except the first link.
        Raises as `read`.
        """
        try:
            return self._read_run(first_index, max_bytes, verify=verify)
        except CorruptionError:
            self._require_kept(first_index)
            raise

    def _read_run(self, first_index: int, max_bytes: int, *, verify: bool) -> tuple[list[EntryMeta], bytes]:
        recent = self._recent.get(first_index)
        if recent is not None:
            max_bytes = min(max_bytes, self.segment_bytes - recent.position % self.segment_bytes)
        metas = self._recent.run(first_index, max_bytes)
        if metas:
            data = self.read(metas[0].position, metas[-1].end - metas[0].position)
            return (parse_run(data, None) if verify else metas), data
        first = self.meta(first_index)
        segment = self._table.containing(first.position)
        end = min(segment.start + self.segment_bytes, self.end_position)
        for known in self._damage.ranges:
            if first.position < known.start < end:
                end = known.start
        size = max(first.size, min(max_bytes, end - first.position))
        data = self.read(first.position, size)
        metas = headers_in(data)
        if not metas or metas[0] != first:
            raise CorruptionError(f"entry {first_index} at {first.position} changed while it was read")
        data = data[: metas[-1].end - first.position]
        return (parse_run(data, None) if verify else metas), data

    def pin(self, position: int) -> Pin:
        """Keep the segment that holds `position` readable through the returned pin, even if it is trimmed.

        Blocks, because the file may have to be opened. Raises `TrimmedError` or `StorageError`.
        """
        return Pin(self._table.containing(position), self.segment_bytes)

    def segments(self) -> list[SegmentInfo]:
        """Return the kept segments, oldest first."""
        return [
            SegmentInfo(segment.start, min(segment.start + self.segment_bytes, self.end_position))
            for segment in self._table
        ]

    def segment_written_ms(self, start: int) -> int:
        """Return when the file of the segment at a position was last written, in ms since 1970. Blocks.

        Raises `TrimmedError` if the file is gone.
        """
        try:
            return self._disk.stat(segment_path(start)).mtime_ms
        except FileNotFoundError:
            raise TrimmedError(f"the segment at {start} was trimmed") from None

    def disk_space(self) -> DiskSpace:
        """Return the free and the total space of the log's file system. Blocks; raises `OSError`."""
        return self._disk.usage(DIRECTORY)


def _start(segment: Segment) -> int:
    return segment.start
