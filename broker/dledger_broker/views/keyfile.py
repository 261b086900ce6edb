"""One file of the key index.  Integers are big-endian.

    offset  size  field
         0     8  begin timestamp: store time of the first record, ms
         8     8  end timestamp: the highest store time, ms
        16     8  begin position: physical offset of the first record
        24     8  end position: physical offset of the last record
        32     4  slots in use
        36     4  number of the next entry; the first entry has number 1
        40     4  per slot: number of the slot's newest entry, 0 for none
        ..    20  per entry: key hash (4), physical offset (8), seconds since the begin timestamp (4; below 0 where a
                  later leader's clock was behind), number of the entry before it in the same slot (4)

A key is `topic#key`, its hash the absolute value of Java's `String.hashCode`, its slot the hash modulo the number of
slots.  A file has 5,000,000 slots and room for 20,000,000 entries: 420,000,040 bytes, sparse.  Its name is the time of
its first record, `yyyyMMddHHmmssSSS` in UTC.  Format: RocketMQ's `IndexFile`.

Entries are written as they come.  The slots of the file that is being filled live in memory and reach the disk when it
is full, now and then, and at a clean stop; a crash in between costs computing them from the entries.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import lru_cache
from operator import mul
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dledger.store.disk import Disk, File
from dledger_remoting.filters.tags import java_hash

HEADER: Final = Struct(">qqqqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY: Final = Struct(">iqii")
ENTRY_BYTES: Final = 20
_ENTRIES: Final = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
MAX_CHAIN_STEPS: Final = 100_000
"""Entries of one slot that a query looks at before it gives up on older ones."""
_PIECE_SLOTS: Final = (256 << 10) // SLOT_BYTES
_PIECE_ENTRIES: Final = (256 << 10) // ENTRY_BYTES
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
KEYS_TYPE: Final = np.dtype([("hash", "i4"), ("position", "i8"), ("stored_ms", "i8")])
Keys: TypeAlias = NDArray[np.void]
"""Many of them, of `KEYS_TYPE`."""


def as_keys(keys: list[IndexedKey]) -> Keys:
    """Keys that were found one by one."""
    return np.array(keys, KEYS_TYPE)


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
def _powers(length: int) -> tuple[int, ...]:
    """What the characters of a text of this length are multiplied with in its hash."""
    return tuple(pow(31, length - 1 - place, 1 << 32) for place in range(length))


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str, key_length: int) -> int:
    """What `topic#` adds to the hash of a text with `key_length` more characters."""
    return java_hash(topic + "#") * pow(31, key_length, 1 << 32)


def key_hash(topic: str, key: bytes) -> int:
    """The hash of `topic#key` as the index uses it, from 0 to 2^31 - 1.  Bytes that are no UTF-8 count as U+FFFD."""
    length = len(key)
    if key.isascii() and length < 256:
        code: int = sum(map(mul, key, _powers(length))) + _prefix_hash(topic, length)
    else:
        code = java_hash(f"{topic}#{key.decode(errors='replace')}")
    code &= 0xFFFFFFFF
    if code < 0x80000000:
        return code
    return (1 << 32) - code if code > 0x80000000 else 0


def key_hashes(topic: str, keys: NDArray[np.uint8]) -> NDArray[np.int32]:
    """`key_hash` of many ASCII keys of one topic and length, a row each."""
    length = keys.shape[1]
    codes = keys.astype(np.uint32) @ np.array(_powers(length), np.uint32)
    codes += np.uint32(_prefix_hash(topic, length) & 0xFFFFFFFF)
    signed = codes.view(np.int32)
    # Like Java's, the absolute value of the smallest number is itself.
    return np.maximum(np.abs(signed), 0)


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
        memory = mmap.mmap(-1, SLOT_BYTES * layout.slots, flags=private)
        self._slots: NDArray[np.int32] = np.frombuffer(memory, np.int32)
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

    def add(self, keys: Keys) -> None:
        """Add at most `room` keys, in log order, with one write."""
        if not len(keys):
            return
        header = self.header
        begin_position, begin_timestamp = header.begin_position, header.begin_timestamp
        if header.next_entry == 1:
            begin_position, begin_timestamp = int(keys["position"][0]), int(keys["stored_ms"][0])
        slots = keys["hash"] % self._layout.slots
        in_order = np.argsort(slots, kind="stable")
        # Sorted, the keys of a slot stand side by side, each behind the one before it.
        slots = slots[in_order]
        numbers = (in_order + header.next_entry).astype(np.int32)
        first = np.append(True, slots[1:] != slots[:-1])
        last = np.append(first[1:], True)
        on_top = self._slots[slots]
        entries = np.empty(len(keys), _ENTRIES)
        entries["hash"], entries["position"] = keys["hash"], keys["position"]
        entries["seconds"] = np.clip((keys["stored_ms"] - begin_timestamp) // 1000, -_INT_MAX, _INT_MAX)
        entries["previous"][in_order] = np.where(first, on_top, np.roll(numbers, 1))
        # Slots follow the write: after one that failed they would name entries that are not there, and end the chains.
        self._file.pwrite(entries.tobytes(), self._layout.entry_at(header.next_entry))
        self._slots[slots[last]] = numbers[last]
        self.header = IndexHeader(
            begin_timestamp,
            max(header.end_timestamp, int(keys["stored_ms"].max())),
            begin_position,
            int(keys["position"][-1]),
            header.slots_in_use + int(np.count_nonzero(first & (on_top == 0))),
            header.next_entry + len(keys),
        )

    def positions(self, wanted: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of entries with the hash `wanted` and a store time in the range, newest first.

        Other keys may have the same hash.
        """
        newest = int(self._slots[wanted % self._layout.slots])
        return _walk(self._file, self._layout, self.header, newest, wanted, begin_ms, end_ms)

    def sync_entries(self) -> None:
        """Write the header and make all entries durable."""
        self._file.pwrite(self.header.pack(), 0)
        self._file.datasync()

    def write_slots(self) -> None:
        """Write all slots in use; while this runs the slots on disk are worth nothing."""
        for begin in range(0, len(self._slots), _PIECE_SLOTS):
            piece = self._slots[begin : begin + _PIECE_SLOTS]
            if piece.any():
                self._file.pwrite(piece.astype(">i4").tobytes(), HEADER_BYTES + SLOT_BYTES * begin)

    def close(self) -> None:
        """Close the file and give the memory back, once nobody looks at it: an error may still know a piece of it."""
        self._file.close()
        self._slots = np.empty(0, np.int32)

    def _load_slots(self, slots_entries: int) -> None:
        if slots_entries > 1:
            for begin in range(0, len(self._slots), _PIECE_SLOTS):
                count = min(_PIECE_SLOTS, len(self._slots) - begin)
                piece = np.frombuffer(self._file.pread(SLOT_BYTES * count, HEADER_BYTES + SLOT_BYTES * begin), ">i4")
                if piece.any():
                    self._slots[begin : begin + count] = piece
        for begin in range(max(slots_entries, 1), self.header.next_entry, _PIECE_ENTRIES):
            count = min(_PIECE_ENTRIES, self.header.next_entry - begin)
            entries = np.frombuffer(self._file.pread(ENTRY_BYTES * count, self._layout.entry_at(begin)), _ENTRIES)
            numbers = np.arange(begin, begin + count, dtype=np.int32)
            np.maximum.at(self._slots, entries["hash"] % self._layout.slots, numbers)


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
