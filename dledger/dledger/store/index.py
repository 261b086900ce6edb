"""Index of entries' positions: `index/<20 digits>`, one file per segment, which can be rebuilt from that segment.

The file is named like its segment and holds one unit per entry that starts there, in order (big-endian; DLedger's index
unit). Zeros may follow the last unit, because space is reserved ahead:

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

from dledger.errors import BusyError, LogFullError, StorageError
from dledger.store.disk import LACKING, OUT_OF_FILES, Disk, File
from dledger.store.erase import erase, shorten
from dledger.store.segments import Segment, segment_name
from dledger.store.unreadable import is_lost_name, overwrite, salvage
from dledger.types import EntryKind, EntryMeta
from dledger_base.room import FULL

DIRECTORY = "index"
UNIT = struct.Struct(">IQIQQ")
UNIT_BYTES = UNIT.size
MAX_OPEN_FILES = 8
RESERVE_STEP_UNITS = 4096

_KINDS = frozenset(int(kind) for kind in EntryKind)


@dataclass(frozen=True, slots=True)
class IndexUnit:
    """One unit; the module's table shows its fields."""

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
    """Return the units of a run of entries."""
    pack = UNIT.pack
    return b"".join([pack(meta.kind, meta.position, meta.size, meta.index, meta.term) for meta in metas])


def no_membership_entries(units: bytes, first_index: int, next_index: int) -> bool:
    """Return whether units show that no entry from `first_index` to before `next_index` is a membership entry."""
    kinds = {index: magic for magic, _, _, index, _ in UNIT.iter_unpack(units[: len(units) // UNIT_BYTES * UNIT_BYTES])}
    others = _KINDS - {int(EntryKind.MEMBERSHIP)}
    return all(kinds.get(index) in others for index in range(first_index, next_index))


class IndexFiles:
    """All index files; at most `MAX_OPEN_FILES` are open at a time.

    They are written on the flush thread and read on any thread. A lock keeps a file from being closed under a read.
    Errors are `OSError`.
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
        file = self._open_file(f"{DIRECTORY}/{segment_name(segment_start)}", create=create)
        if file is None:
            return None
        self._open[segment_start] = file
        if len(self._open) > MAX_OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return file

    def _open_file(self, path: str, *, create: bool) -> File | None:
        """Open a file; None if it is missing, or if its name cannot be read. In that case `create` makes it anew.

        If the process may open no more, an open index file makes room.
        """
        is_removed = False
        while True:
            try:
                return self._disk.open(path, create=create)
            except FileNotFoundError:
                return None
            except OSError as error:
                if is_lost_name(error) and not create:
                    return None
                if is_lost_name(error) and not is_removed:
                    self._disk.unlink(path)
                    is_removed = True
                    continue
                if error.errno not in OUT_OF_FILES or not self._open:
                    raise
            self._open.popitem(last=False)[1].close()

    def write(self, segment: Segment, slot: int, units: bytes) -> None:
        """Write units from a slot on (0 = the segment's first entry), without a sync.

        Nothing is written for a segment that has left the log meanwhile: an index file without its segment would mean
        that the segment was lost.
        """
        with self._lock:
            if segment.retired:
                return
            file = self._file(segment.start, create=True)
            if file is not None:
                overwrite(file, units, slot * UNIT_BYTES)

    def reserved(self, segment_start: int) -> int:
        """Return the number of a segment's units that are known to have space. Never blocks."""
        return self._reserved.get(segment_start, 0)

    def reserve(self, segment_start: int, units: int) -> None:
        """Make sure that a segment's first `units` units can be written. Blocks.

        Raises `LogFullError` if there is no space, or `StorageError`.
        """
        with self._lock:
            reserved = self._reserved.get(segment_start, 0)
            if units <= reserved:
                return
            reserved_units = max(units, reserved + RESERVE_STEP_UNITS)
            try:
                try:
                    self._extend(segment_start, reserved, reserved_units)
                except OSError as error:
                    if reserved_units == units or error.errno not in FULL:
                        raise
                    reserved_units = units
                    self._extend(segment_start, reserved, reserved_units)
            except OSError as error:
                if error.errno in LACKING:
                    raise LogFullError(f"no space for the index of the segment at {segment_start}: {error}") from error
                raise StorageError(f"reserving the index of the segment at {segment_start} failed: {error}") from error
            self._reserved[segment_start] = reserved_units

    def _extend(self, segment_start: int, reserved: int, needed_units: int) -> None:
        file = self._file(segment_start, create=True)
        if file is not None:
            file.reserve(reserved * UNIT_BYTES, (needed_units - reserved) * UNIT_BYTES)

    def read_raw(self, segment_start: int, slot: int, count: int) -> bytes:
        """Return the bytes of up to `count` units; fewer, or none, at the end of the file.

        Unreadable units are not valid. Raises `BusyError` if the process may open no more files now.
        """
        with self._lock:
            try:
                file = self._file(segment_start, create=False)
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    raise BusyError(f"the index of segment {segment_start} cannot be opened now: {error}") from error
                raise
            return b"" if file is None else salvage(file, count * UNIT_BYTES, slot * UNIT_BYTES)

    def read(self, segment_start: int, slot: int) -> IndexUnit | None:
        """Return one unit; None if the file has no valid unit there. Raises as `read_raw`."""
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
        """Keep the first `count` units, and space for `keep` more."""
        with self._lock:
            file = self._file(segment_start, create=False)
            if file is not None:
                shorten(file, count * UNIT_BYTES, keep * UNIT_BYTES)
            self._reserved.pop(segment_start, None)

    def erase(self, segment_start: int, count: int, written: int) -> None:
        """Keep the first `count` of `written` units, durably, and the space of the others."""
        with self._lock:
            file = self._file(segment_start, create=False)
            if file is None:
                return
            end = min(file.size(), written * UNIT_BYTES)
            if not erase(file, count * UNIT_BYTES, end):
                self._reserved.pop(segment_start, None)

    def delete(self, segment_start: int) -> None:
        """Remove a segment's index file."""
        with self._lock:
            self._reserved.pop(segment_start, None)
            file = self._open.pop(segment_start, None)
        self._disk.unlink(f"{DIRECTORY}/{segment_name(segment_start)}")
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files, without a sync."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._reserved.clear()
