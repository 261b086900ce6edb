"""The reading half of the log: entries by index, bytes by position, on any thread.

What changes under a reader (segments, window, terms, damage) is replaced as a whole by the writing half, never altered
in place; a segment that is read cannot be closed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from dledger.errors import CorruptionError, StorageError, TrimmedError
from dledger.format import parse_run
from dledger.invariants import invariant
from dledger.store.damage import Damage
from dledger.store.disk import Disk, DiskSpace
from dledger.store.index import IndexFiles, IndexUnit
from dledger.store.scan import Cursor, header_at, headers_in
from dledger.store.segments import DIRECTORY, Segment, SegmentTable, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.window import RecentWindow, TermTable
from dledger.types import EntryMeta, SnapshotMeta

T = TypeVar("T")


class SegmentInfo(NamedTuple):
    """One kept segment, by log positions."""

    start_position: int
    end_position: int


class OpenFile(NamedTuple):
    """An open file of the log: its descriptor, and the positions at which it, or the log in it, begins and ends."""

    descriptor: int
    start: int
    end: int


class Pin:
    """Keeps one segment readable, trimmed or not.  A context manager; releasing twice does nothing."""

    __slots__ = ("_held", "_segment", "_segment_bytes")

    def __init__(self, segment: Segment, segment_bytes: int) -> None:
        segment.acquire()
        self._segment = segment
        self._segment_bytes = segment_bytes
        self._held = True

    def read(self, position: int, size: int) -> bytes:
        """Bytes of the pinned segment, by log position."""
        offset = position - self._segment.start
        invariant(
            self._held and 0 <= offset <= self._segment_bytes - size, "a pin reads its segment", position=position
        )
        return self._segment.file.pread(size, offset)

    def release(self) -> None:
        """Let go of the segment."""
        if self._held:
            self._held = False
            self._segment.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class LogReader:
    """A log that can be read.  `dledger.store.log.LogStore` is one that can be written, too, and keeps these fields.

    `first_index` to `last_index` are the kept entries (none if the last is below the first), `first_position` is the
    start of the first kept segment, `end_position` where the last entry ends.
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
        """The meta of a kept entry; of an older one it is read from the disk, unverified.

        Raises `TrimmedError` below the first, `CorruptionError` if it does not verify or cannot be read as one.
        """
        self._check_kept(index)
        held = self._recent.get(index)
        if held is not None:
            return held
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
            raise StorageError(f"reading entry {index} at {unit.position} failed: {error}") from error
        finally:
            segment.release()
        if found is None or found.index != index:
            raise CorruptionError(f"entry {index} is not at {unit.position}, where the index has it")
        return found

    def _end_before(self, index: int) -> tuple[int, int, int] | None:
        """(end position, term, chain crc) of the entry before `index`; None if it is not kept and nothing tells.

        Behind the last entry of a snapshot the log goes on at the snapshot's position, behind a blank if need be.
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
        """The snapshot that ends before a kept entry and stands where that does.

        One that was received may have the same last entry and stand elsewhere, where its log goes on and this one, with
        an entry that nobody else has, does not.
        """
        try:
            position = self.position_at(index)
        except CorruptionError:
            return None
        here = (meta for meta in self.snapshots.list() if meta.position == position)
        return next((meta for meta in here if meta.last_index == index - 1), None)

    def _cursor_at(self, position: int, index: int) -> Cursor:
        before = self._end_before(index)
        return Cursor(position, index, 0, None) if before is None else Cursor(position, index, before[1], before[2])

    def held_meta(self, index: int) -> EntryMeta | None:
        """The meta of one of the last entries, from memory; None of another one."""
        return self._recent.get(index)

    def term_at(self, index: int) -> int:
        """The term of a kept entry, from memory.  Raises `TrimmedError` below the first."""
        self._check_kept(index)
        term = self._terms.term_at(index)
        self._check_kept(index)
        return term

    def position_at(self, index: int) -> int:
        """Where a kept entry starts; where the next one is to be expected behind the last.  Raises as `meta`."""
        last_index = self.last_index  # looked at once: the end of the log may be cut off meanwhile
        if index == last_index + 1:
            return self.end_position
        self._check_kept(index, last_index)
        damaged = self._damage.holding(index)
        if damaged is not None and index == damaged.first_index:
            return damaged.start
        held = self._recent.get(index)
        if held is not None:
            return held.position
        try:
            return self._unit(index)[1].position
        except CorruptionError:
            self._require_kept(index)
            raise

    def index_at(self, position: int) -> int:
        """The index of the last entry that starts at or before `position`: it holds that byte, or a blank does.

        Of a corrupt range, its first one.  Raises `TrimmedError` below the first.
        """
        damaged = self._damage.at(position)
        if damaged is not None:
            return damaged.first_index
        segment = self._table.containing(position)
        low, high = segment.first_index, self._last_index_of(segment)
        while low < high:
            middle = (low + high + 1) // 2
            damaged = self._damage.holding(middle)
            start = self.position_at(middle) if damaged is None else damaged.start
            if start <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def is_in_line(self, index: int) -> bool:
        """Whether an entry that cannot be read is where the index has it: behind the one before it in its segment.

        Where a corrupt range begins is known.
        """
        if self._damage.holding(index) is not None:
            return True
        segment, unit = self._unit(index)
        if index == segment.first_index:
            return unit.position == segment.start
        return self._unit(index - 1)[1].end == unit.position

    def segment_start(self, index: int) -> int:
        """Where the segment begins that holds an entry, or the last one; from memory.  Raises `TrimmedError`."""
        return self._table.of_index(index).start

    def first_index_of_segment(self, position: int) -> int:
        """The first index in the segment that holds a position.  Raises `TrimmedError` below the first."""
        return self._table.containing(position).first_index

    def _last_index_of(self, segment: Segment) -> int:
        following = (other.first_index for other in self._table.segments if other.start > segment.start)
        return next(following, self.last_index + 1) - 1

    def _check_kept(self, index: int, last_index: int | None = None) -> None:
        if index < self.first_index:
            raise TrimmedError(f"index {index} is below the first kept index {self.first_index}")
        last_index = self.last_index if last_index is None else last_index
        invariant(index <= last_index, "an entry is in the log", index=index, last_index=last_index)

    def _require_kept(self, index: int) -> None:
        """Raise `TrimmedError` if what was read about an entry was wrong because the entry left the log meanwhile."""
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
        """Bytes of the log inside one segment, as they are on disk.  Blocks where the page cache has not got them.

        Raises `TrimmedError`, `CorruptionError` (the range is known not to verify), `StorageError`.
        """
        segment = self._readable(position, size)
        file = segment.acquire()
        try:
            data = file.pread(size, position - segment.start)
        except OSError as error:
            raise StorageError(f"reading {size} bytes at {position} failed: {error}") from error
        finally:
            segment.release()
        if len(data) != size:
            raise CorruptionError(f"{segment_path(segment.start)} ends at {position + len(data)}, inside the log")
        return data

    def read_nowait(self, position: int, size: int) -> bytes | None:
        """As `read`, but None if that would block.  On the event loop only."""
        segment = self._readable(position, size)
        file = segment.acquire_open()
        if file is None:
            return None
        try:
            return file.pread_nowait(size, position - segment.start)
        finally:
            segment.release()

    def with_open_file(self, position: int, use: Callable[[OpenFile], T]) -> T | None:
        """Call `use` with the file that has a position, which stays open meanwhile; it must not block.

        None, and nothing called, if that file is not open, or has no descriptor, or the position is not in the log, or
        a part of the log is damaged.  On the event loop only.
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
        if position + size > segment.start + self.segment_bytes:  # what names them may be a file that has rotted
            raise CorruptionError(f"{size} bytes at {position} do not lie in one segment of the log: nothing is there")
        return segment

    def read_entries(self, first_index: int, max_bytes: int, *, verify: bool = False) -> tuple[list[EntryMeta], bytes]:
        """A run of entries from `first_index` on inside one segment, as metas and bytes.

        At most `max_bytes`, but at least one entry.  With `verify` bodies and chain are checked (not the first link).
        Raises as `read`.
        """
        try:
            return self._read_run(first_index, max_bytes, verify=verify)
        except CorruptionError:
            self._require_kept(first_index)
            raise

    def _read_run(self, first_index: int, max_bytes: int, *, verify: bool) -> tuple[list[EntryMeta], bytes]:
        held = self._recent.get(first_index)
        if held is not None:
            max_bytes = min(max_bytes, self.segment_bytes - held.position % self.segment_bytes)
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
        """Keep the segment that holds `position` readable through the returned pin, whatever is trimmed.

        Blocks: its file may have to be opened.  Raises `TrimmedError`, `StorageError`.
        """
        return Pin(self._table.containing(position), self.segment_bytes)

    def segments(self) -> list[SegmentInfo]:
        """The kept segments, oldest first."""
        return [
            SegmentInfo(segment.start, min(segment.start + self.segment_bytes, self.end_position))
            for segment in self._table
        ]

    def segment_written_ms(self, start: int) -> int:
        """When the file of the segment that starts at a position was written last, ms since 1970.  Blocks.

        Raises `TrimmedError` if it is gone.
        """
        try:
            return self._disk.stat(segment_path(start)).mtime_ms
        except FileNotFoundError:
            raise TrimmedError(f"the segment at {start} was trimmed") from None

    def disk_space(self) -> DiskSpace:
        """What the file system has.  Blocks; raises `OSError`."""
        return self._disk.usage(DIRECTORY)
