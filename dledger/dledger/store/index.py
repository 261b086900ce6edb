"""Where each entry lies: `index/<20 digits>`, one file per segment, rebuildable from it.

The file is named like its segment and holds one unit per entry that starts there, in order (big-endian; DLedger's
index unit); it may be longer than what is written to it (zeros, reserved ahead):

    offset  size  field
         0     4  magic     of the entry
         4     8  position  of the entry's header
        12     4  size      48 + body length
        16     8  index
        24     8  term
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from dledger.errors import LogFullError, StorageError
from dledger.store.disk import FULL, Disk, File
from dledger.store.erase import erase, shorten
from dledger.store.segments import Segment, segment_name
from dledger.types import EntryKind, EntryMeta

DIRECTORY = "index"
UNIT = struct.Struct(">IQIQQ")
UNIT_BYTES = UNIT.size
MAX_OPEN_FILES = 8
RESERVE_STEP_UNITS = 4096

_KINDS = frozenset(int(kind) for kind in EntryKind)


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """One unit; see the module's table."""

    magic: int
    position: int
    size: int
    index: int
    term: int

    @property
    def end(self) -> int:
        """Position of the first byte after the entry."""
        return self.position + self.size


def encode_units(metas: Iterable[EntryMeta]) -> bytes:
    """The units of a run of entries."""
    pack = UNIT.pack
    return b"".join([pack(meta.kind, meta.position, meta.size, meta.index, meta.term) for meta in metas])


def no_membership_entries(units: bytes, first_index: int, next_index: int) -> bool:
    """Whether units say of every entry from `first_index` to before `next_index` that it is no membership entry."""
    kinds = {index: magic for magic, _, _, index, _ in UNIT.iter_unpack(units[: len(units) // UNIT_BYTES * UNIT_BYTES])}
    others = _KINDS - {int(EntryKind.MEMBERSHIP)}
    return all(kinds.get(index) in others for index in range(first_index, next_index))


class IndexFiles:
    """All index files; at most `MAX_OPEN_FILES` are open at a time.

    Written on the flush thread, read on any: a lock keeps a file from being closed under a read.  Errors are `OSError`.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: OrderedDict[int, File] = OrderedDict()
        self._reserved: dict[int, int] = {}
        self._lock = Lock()

    def _file(self, segment_start: int, *, create: bool) -> File | None:
        file = self._open.get(segment_start)
        if file is not None:
            self._open.move_to_end(segment_start)
            return file
        try:
            file = self._disk.open(f"{DIRECTORY}/{segment_name(segment_start)}", create=create)
        except FileNotFoundError:
            return None
        self._open[segment_start] = file
        if len(self._open) > MAX_OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file

    def write(self, segment: Segment, slot: int, units: bytes) -> None:
        """Write units from a slot (0 = the segment's first entry) on; not synced.

        Nothing is written of a segment that left the log meanwhile: its file would say that the segment was lost.
        """
        with self._lock:
            if segment.retired:
                return
            file = self._file(segment.start, create=True)
            if file is not None:
                file.pwrite(units, slot * UNIT_BYTES)

    def reserved(self, segment_start: int) -> int:
        """How many of a segment's units are known to have space.  Never blocks."""
        return self._reserved.get(segment_start, 0)

    def reserve(self, segment_start: int, units: int) -> None:
        """Make sure that a segment's first `units` units can be written.  Blocks.

        Raises `LogFullError` if there is no space, `StorageError`.
        """
        with self._lock:
            reserved = self._reserved.get(segment_start, 0)
            if units <= reserved:
                return
            wanted = max(units, reserved + RESERVE_STEP_UNITS)
            try:
                try:
                    self._extend(segment_start, reserved, wanted)
                except OSError as error:
                    if wanted == units or error.errno not in FULL:
                        raise
                    wanted = units
                    self._extend(segment_start, reserved, wanted)
            except OSError as error:
                if error.errno in FULL:
                    raise LogFullError(f"no space for the index of the segment at {segment_start}: {error}") from error
                raise StorageError(f"reserving the index of the segment at {segment_start} failed: {error}") from error
            self._reserved[segment_start] = wanted

    def _extend(self, segment_start: int, reserved: int, wanted: int) -> None:
        file = self._file(segment_start, create=True)
        if file is not None:
            file.reserve(reserved * UNIT_BYTES, (wanted - reserved) * UNIT_BYTES)

    def read_raw(self, segment_start: int, slot: int, count: int) -> bytes:
        """The bytes of up to `count` units; fewer, or none, where the file ends."""
        with self._lock:
            file = self._file(segment_start, create=False)
            return b"" if file is None else file.pread(count * UNIT_BYTES, slot * UNIT_BYTES)

    def read(self, segment_start: int, slot: int) -> IndexUnit | None:
        """One unit; None if the file has none there that could be one."""
        raw = self.read_raw(segment_start, slot, 1) if slot >= 0 else b""
        if len(raw) != UNIT_BYTES:
            return None
        unit = IndexUnit(*UNIT.unpack(raw))
        return unit if unit.magic in _KINDS else None

    def sync(self, segment_start: int) -> None:
        """Make a segment's units durable."""
        with self._lock:
            if self._file(segment_start, create=False) is None:
                return
            file = self._open.pop(segment_start)
        try:
            file.datasync()
        finally:
            file.close()

    def truncate(self, segment_start: int, count: int, keep: int = 0) -> None:
        """Keep the first `count` units, and the space of `keep` more."""
        with self._lock:
            file = self._file(segment_start, create=False)
            if file is not None:
                shorten(file, count * UNIT_BYTES, keep * UNIT_BYTES)
            self._reserved.pop(segment_start, None)

    def erase(self, segment_start: int, count: int, written: int) -> None:
        """Keep the first `count` units of `written`, durably, and the space of the others."""
        with self._lock:
            file = self._file(segment_start, create=False)
            if file is None:
                return
            end = min(file.size(), written * UNIT_BYTES)
            if not erase(file, count * UNIT_BYTES, end):
                self._reserved.pop(segment_start, None)

    def delete(self, segment_start: int) -> None:
        """Remove a segment's units."""
        with self._lock:
            self._reserved.pop(segment_start, None)
            file = self._open.pop(segment_start, None)
        self._disk.unlink(f"{DIRECTORY}/{segment_name(segment_start)}")
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files; syncs nothing."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._reserved.clear()
