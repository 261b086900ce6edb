"""One file of the key index.  Integers are big-endian.

    offset  size  field
         0     8  begin timestamp: store time of the first record, ms
         8     8  end timestamp: store time of the last record, ms
        16     8  begin position: physical offset of the first record
        24     8  end position: physical offset of the last record
        32     4  slots in use
        36     4  number of the next entry; the first entry has number 1
        40     4  per slot: number of the slot's newest entry, 0 for none
        ..    20  per entry: key hash (4), physical offset (8), seconds since the begin timestamp (4), number of the
                  entry before it in the same slot (4)

A key is `topic#key`, its hash the absolute value of Java's `String.hashCode`, its slot the hash modulo the number of
slots.  A file has 5,000,000 slots and room for 20,000,000 entries: 420,000,040 bytes, sparse.  Its name is the time of
its first record, `yyyyMMddHHmmssSSS` in UTC.  Format: RocketMQ's `IndexFile`.

Entries are written as they come.  The slots of the file that is being filled live in memory and reach the disk when it
is full, now and then, and at a clean stop; a crash in between costs computing them from the entries.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from operator import mul
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec

from dledger.invariants import invariant
from dledger.store.disk import Disk, File
from dledger_remoting.tags import java_hash

HEADER: Final = Struct(">qqqqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY: Final = Struct(">iqii")
ENTRY_BYTES: Final = 20
MAX_CHAIN_STEPS: Final = 100_000
"""Entries of one slot that a query looks at before it gives up on older ones."""
_PIECE_BYTES: Final = 256 << 10
_INT_MAX: Final = 0x7FFFFFFF


class IndexLayout(NamedTuple):
    """How many slots a file has and for how many entries it has room; number 0 of them is never used."""

    slots: int = 5_000_000
    entries: int = 20_000_000

    @property
    def file_bytes(self) -> int:
        """The size of a file."""
        return HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * self.entries

    def entry_at(self, number: int) -> int:
        """Where an entry starts in the file."""
        return HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * number


IndexedKey: TypeAlias = tuple[int, int, int]
"""A key of a record: its hash, the record's physical offset and store time in ms."""


class IndexHeader(msgspec.Struct, frozen=True, array_like=True):
    """The header of a file; fields in the order of the format."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_position: int = 0
    end_position: int = 0
    slots_in_use: int = 0
    next_entry: int = 1

    def pack(self) -> bytes:
        """The bytes of the header."""
        return HEADER.pack(*msgspec.structs.astuple(self))


@lru_cache(maxsize=256)
def powers(length: int) -> tuple[int, ...]:
    """What the characters of a text of this length are multiplied with in its hash."""
    return tuple(pow(31, length - 1 - place, 1 << 32) for place in range(length))


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str, key_length: int) -> int:
    """What `topic#` adds to the hash of a text with `key_length` more characters."""
    return java_hash(topic + "#") * pow(31, key_length, 1 << 32)


def key_hash(topic: str, key: bytes) -> int:
    """The hash of `topic#key` as the index uses it, from 0 to 2^31 - 1.  Bytes that are no UTF-8 count as U+FFFD."""
    return sign_free(hash_start(topic, key))


def hash_start(topic: str, key: bytes) -> int:
    """Java's hash of `topic#key`, modulo 2^32 only: what the hash of a longer key begins with."""
    length = len(key)
    if key.isascii() and length < 256:
        code: int = sum(map(mul, key, powers(length)))
        return code + _prefix_hash(topic, length)
    return java_hash(f"{topic}#{key.decode(errors='replace')}")


def sign_free(code: int) -> int:
    """The absolute value, as Java has it, of a hash that is right modulo 2^32."""
    code &= 0xFFFFFFFF
    if code < 0x80000000:
        return code
    return (1 << 32) - code if code > 0x80000000 else 0


class SealedIndexFile:
    """A full file: only queried.  Every call blocks; opening one that is not full raises ValueError."""

    def __init__(self, disk: Disk, path: str, layout: IndexLayout) -> None:
        self.path = path
        self._disk = disk
        self._layout = layout
        file = disk.open(path)
        try:
            self.header = IndexHeader(*HEADER.unpack(file.pread(HEADER_BYTES, 0)))
            if file.size() < layout.file_bytes or self.header.next_entry != layout.entries:
                raise ValueError(f"{path} has {file.size()} bytes and {self.header}, expected a full file")
        finally:
            file.close()

    def positions(self, wanted: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """See `ActiveIndexFile.positions`."""
        file = self._disk.open(self.path)
        try:
            place = HEADER_BYTES + SLOT_BYTES * (wanted % self._layout.slots)
            newest = int.from_bytes(file.pread(SLOT_BYTES, place), "big")
            yield from _walk(file, self._layout, self.header, newest, wanted, begin_ms, end_ms)
        finally:
            file.close()


class ActiveIndexFile:
    """The file that keys are added to.  Every call blocks; none may run beside another."""

    def __init__(self, disk: Disk, path: str, layout: IndexLayout, header: IndexHeader, slots_entries: int) -> None:
        """Open the file as a checkpoint describes it: `header`, and slots on disk that cover entries below
        `slots_entries`; or create it if the header says that it is empty.

        Raises FileNotFoundError or ValueError if the file is not what the checkpoint describes.
        """
        self.path = path
        self.header = header
        self._layout = layout
        fresh = header.next_entry == 1
        if fresh:
            disk.unlink(path)
        self._file = disk.open(path, create=fresh)
        # Anonymous memory, not the file: its pages cost nothing until they are used.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._slot_bytes = mmap.mmap(-1, SLOT_BYTES * layout.slots, flags=private)
        self._slots = memoryview(self._slot_bytes).cast("i")
        invariant(self._slots.itemsize == SLOT_BYTES, "a C int has four bytes")
        if fresh:
            self._file.pwrite(b"\0", layout.file_bytes - 1)
        else:
            if self._file.size() < layout.entry_at(header.next_entry):
                found = self._file.size()
                self.close()
                raise ValueError(f"{path} has {found} bytes, too few for {header}")
            self._load_slots(slots_entries)

    @property
    def full(self) -> bool:
        """True if no entry fits any more."""
        return self.header.next_entry >= self._layout.entries

    @property
    def room(self) -> int:
        """How many entries fit."""
        return self._layout.entries - self.header.next_entry

    def add(self, keys: list[IndexedKey]) -> None:
        """Add at most `room` keys, in log order, with one write."""
        if not keys:
            return
        header = self.header
        _, begin_position, begin_timestamp = keys[0]
        if header.next_entry > 1:
            begin_position, begin_timestamp = header.begin_position, header.begin_timestamp
        slots, slot_count, pack = self._slots, self._layout.slots, ENTRY.pack
        number, in_use = header.next_entry, header.slots_in_use
        newest: dict[int, int] = {}
        parts: list[bytes] = []
        last_timestamp, seconds = begin_timestamp, 0
        for code, position, store_timestamp in keys:
            slot = code % slot_count
            previous = newest.get(slot) or slots[slot]
            in_use += not previous
            if store_timestamp != last_timestamp:
                seconds = min(max((store_timestamp - begin_timestamp) // 1000, 0), _INT_MAX)
                last_timestamp = store_timestamp
            parts.append(pack(code, position, seconds, previous))
            newest[slot] = number
            number += 1
        # Slots follow the write: after one that failed they would name entries that are not there, and end the chains.
        self._file.pwrite(b"".join(parts), self._layout.entry_at(header.next_entry))
        for slot, entry in newest.items():
            slots[slot] = entry
        _, position, store_timestamp = keys[-1]
        self.header = IndexHeader(begin_timestamp, store_timestamp, begin_position, position, in_use, number)

    def positions(self, wanted: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with the hash `wanted` and a store time in the range, newest first.

        Other keys may have the same hash.
        """
        newest = self._slots[wanted % self._layout.slots]
        return _walk(self._file, self._layout, self.header, newest, wanted, begin_ms, end_ms)

    def sync_entries(self) -> None:
        """Write the header and make all entries durable."""
        self._file.pwrite(self.header.pack(), 0)
        self._file.datasync()

    def write_slots(self) -> None:
        """Write all slots in use; while this runs the slots on disk are worth nothing."""
        for begin in range(0, len(self._slot_bytes), _PIECE_BYTES):
            piece = self._slot_bytes[begin : begin + _PIECE_BYTES]
            if not _is_zero(piece):
                self._file.pwrite(_swapped(piece), HEADER_BYTES + begin)

    def close(self) -> None:
        """Close the file and give the memory back."""
        self._file.close()
        self._slots.release()
        self._slot_bytes.close()

    def _load_slots(self, slots_entries: int) -> None:
        if slots_entries > 1:
            end = len(self._slot_bytes)
            for begin in range(0, end, _PIECE_BYTES):
                piece = self._file.pread(min(_PIECE_BYTES, end - begin), HEADER_BYTES + begin)
                if not _is_zero(piece):
                    self._slot_bytes[begin : begin + len(piece)] = _swapped(piece)
        for number, code in self._hashes(max(slots_entries, 1)):
            self._slots[code % self._layout.slots] = number

    def _hashes(self, first: int) -> Iterable[tuple[int, int]]:
        step = _PIECE_BYTES // ENTRY_BYTES
        for begin in range(first, self.header.next_entry, step):
            count = min(step, self.header.next_entry - begin)
            data = self._file.pread(ENTRY_BYTES * count, self._layout.entry_at(begin))
            for place, (code, _, _, _) in enumerate(ENTRY.iter_unpack(data)):
                yield begin + place, code


def _is_zero(data: bytes) -> bool:
    return data.count(0) == len(data)


def _swapped(slots: bytes) -> bytes:
    """Slots from the machine's byte order to the format's, or back."""
    numbers = array("i", slots)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _walk(
    file: File, layout: IndexLayout, header: IndexHeader, number: int, wanted: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    for _ in range(MAX_CHAIN_STEPS):
        if not 0 < number < header.next_entry:
            return
        data = file.pread(ENTRY_BYTES, layout.entry_at(number))
        if len(data) < ENTRY_BYTES:
            return
        code, position, seconds, previous = ENTRY.unpack(data)
        second_ms = header.begin_timestamp + seconds * 1000
        if code == wanted and second_ms + 999 >= begin_ms and second_ms <= end_ms:
            yield position
        number = previous if previous < number else 0
