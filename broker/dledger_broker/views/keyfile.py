"""File of the key index. Integers are big-endian.

    offset  size  field
         0     8  begin timestamp: store time of the first record, ms
         8     8  end timestamp: the highest store time, ms
        16     8  begin position: physical offset of the first record
        24     8  end position: physical offset of the last record
        32     4  slots in use
        36     4  number of the next entry; the first entry has number 1
        40     4  per slot: number of the slot's newest entry, 0 if the slot is empty
        ..    20  per entry: key hash (4), physical offset (8), seconds since the begin timestamp (4; below 0 where a
                  later leader's clock was behind), number of the entry before it in the same slot (4)

A key is `topic#key`. Its hash is the absolute value of Java's `String.hashCode`, its slot the hash modulo the number of
slots. A file has 5,000,000 slots and room for 20,000,000 entries: 420,000,040 bytes, sparse. Its name is the time of
its first record, `yyyyMMddHHmmssSSS` in UTC. Format: RocketMQ's `IndexFile`.

Checksums of 4 bytes follow: `crc32` of every 1,000 slots (0: they were never written), then of every 200 entries.
Everything that is read is verified, and a failure is damage of the whole index. For the last group of entries in the
file that is being filled, the checkpoint has the checksum.

Entries are written as they come. The slots of the file that is being filled live in memory. They reach the disk when
the file is full, now and then, and at a clean stop. After a crash in between, they are computed again from the entries.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from operator import mul
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dledger.errors import CorruptionError
from dledger.store.disk import Disk, File
from dledger.store.unreadable import is_lost
from dledger_base.checksum import crc32
from dledger_remoting.filters.tags import java_hash

HEADER: Final = Struct(">qqqqii")
HEADER_BYTES: Final = 40
SLOT_BYTES: Final = 4
ENTRY: Final = Struct(">iqii")
ENTRY_BYTES: Final = 20
_ENTRIES: Final = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
MAX_CHAIN_STEPS: Final = 100_000
"""Maximum number of entries of one slot that a query reads. It ignores older entries."""
GROUP_SLOTS: Final = 1_000
GROUP_ENTRIES: Final = 200
"""Number of slots and of entries that share a checksum: 4,000 bytes."""
SUM_BYTES: Final = 4
_PIECE_SLOTS: Final = 64 * GROUP_SLOTS
_INT_MAX: Final = 0x7FFFFFFF
_SUM_WITHOUT_ENTRIES: Final = crc32(bytes(ENTRY_BYTES))
"""Checksum of the first group while it has only entry 0, which is never used."""


class IndexLayout(NamedTuple):
    """Number of slots of a file, and number of entries that it has room for. Entry 0 is never used."""

    slots: int = 5_000_000
    entries: int = 20_000_000

    @property
    def file_bytes(self) -> int:
        """The size of a file."""
        return HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * self.entries

    @property
    def slot_groups(self) -> int:
        """Number of groups of slots."""
        return -(-self.slots // GROUP_SLOTS)

    @property
    def entry_groups(self) -> int:
        """Number of groups of entries."""
        return -(-self.entries // GROUP_ENTRIES)

    def slot_sum_at(self, group: int) -> int:
        """Return the place of the checksum of a group of slots."""
        return self.file_bytes + SUM_BYTES * group

    def entry_sum_at(self, group: int) -> int:
        """Return the place of the checksum of a group of entries."""
        return self.file_bytes + SUM_BYTES * (self.slot_groups + group)

    def entry_at(self, number: int) -> int:
        """Return the place where an entry starts in the file."""
        return HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * number


IndexedKey: TypeAlias = tuple[int, int, int]
"""A key of a record: its hash, the record's physical offset and store time in ms."""
KEYS_TYPE: Final = np.dtype([("hash", "i4"), ("position", "i8"), ("stored_ms", "i8")])
Keys: TypeAlias = NDArray[np.void]
"""Many keys, of `KEYS_TYPE`."""


def as_keys(keys: list[IndexedKey]) -> Keys:
    """Return the array of keys that were found one by one."""
    return np.array(keys, KEYS_TYPE)


class IndexHeader(msgspec.Struct, frozen=True, array_like=True):
    """The header of a file. Its fields are in the order of the format."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_position: int = 0
    end_position: int = 0
    slots_in_use: int = 0
    next_entry: int = 1

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        return HEADER.pack(*msgspec.structs.astuple(self))


@lru_cache(maxsize=256)
def _powers(length: int) -> tuple[int, ...]:
    """Return the factors of the characters of a text of this length in its hash."""
    return tuple(pow(31, length - 1 - place, 1 << 32) for place in range(length))


@lru_cache(maxsize=4096)
def _prefix_hash(topic: str, key_length: int) -> int:
    """Return the share of `topic#` in the hash of a text with `key_length` more characters."""
    return java_hash(topic + "#") * pow(31, key_length, 1 << 32)


def key_hash(topic: str, key: bytes) -> int:
    """Return the hash of `topic#key` as the index uses it, from 0 to 2^31 - 1. Bytes that are not UTF-8 count as
    U+FFFD.
    """
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
    """Return the `key_hash` of many ASCII keys of one topic and length, one key a row."""
    length = keys.shape[1]
    codes = keys.astype(np.uint32) @ np.array(_powers(length), np.uint32)
    codes += np.uint32(_prefix_hash(topic, length) & 0xFFFFFFFF)
    signed = codes.view(np.int32)
    # As in Java, the absolute value of the smallest number is itself.
    return np.maximum(np.abs(signed), 0)


class IndexDamageError(CorruptionError):
    """A file of the key index is not what was written."""


def _read(file: File, path: str, size: int, offset: int) -> bytes:
    """Return `size` bytes. Raises `IndexDamageError` if the file or the disk does not have them."""
    try:
        data = file.pread(size, offset)
    except OSError as error:
        if not is_lost(error):
            raise
        raise IndexDamageError(f"{path} cannot be read at byte {offset}: {error}") from error
    if len(data) != size:
        raise IndexDamageError(f"{path} has {len(data)} bytes at byte {offset}, expected {size}")
    return data


def _read_sum(file: File, path: str, place: int) -> int:
    return int.from_bytes(_read(file, path, SUM_BYTES, place), "big")


def _slot_group(file: File, path: str, layout: IndexLayout, group: int) -> bytes:
    """Return a group of slots, verified."""
    begin = GROUP_SLOTS * group
    size = SLOT_BYTES * min(GROUP_SLOTS, layout.slots - begin)
    data = _read(file, path, size, HEADER_BYTES + SLOT_BYTES * begin)
    expected = _read_sum(file, path, layout.slot_sum_at(group))
    if crc32(data) != expected and (expected or any(data)):
        raise IndexDamageError(f"{path}: slots from {begin} on have the checksum {crc32(data)}, expected {expected}")
    return data


class _EntryGroups:
    """Entries of a file below a number, verified group by group. The last group that was read is kept."""

    def __init__(self, file: File, path: str, layout: IndexLayout, end: int, sum_of: Callable[[int], int]) -> None:
        self._file = file
        self._path = path
        self._layout = layout
        self._end = end
        self._sum_of = sum_of
        self._group = -1
        self._data = b""

    def read(self, group: int) -> bytes:
        """Return all entries of a group."""
        if group != self._group:
            begin = GROUP_ENTRIES * group
            size = ENTRY_BYTES * min(GROUP_ENTRIES, self._end - begin)
            data = _read(self._file, self._path, size, self._layout.entry_at(begin))
            expected = self._sum_of(group)
            if crc32(data) != expected:
                raise IndexDamageError(
                    f"{self._path}: entries from {begin} on have the checksum {crc32(data)}, expected {expected}"
                )
            self._group, self._data = group, data
        return self._data

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Return an entry's hash, position, seconds, and the number of the entry before it."""
        group, place = divmod(number, GROUP_ENTRIES)
        return ENTRY.unpack_from(self.read(group), ENTRY_BYTES * place)


class SealedIndexFile:
    """A full file, which is only queried. Every call blocks. To open a file that is not full raises ValueError."""

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
        """Yield the physical offsets of entries with the hash `wanted`, see `ActiveIndexFile.positions`."""
        with self._opened() as file:
            group, place = divmod(wanted % self._layout.slots, GROUP_SLOTS)
            slots = _slot_group(file, self.path, self._layout, group)
            newest = int.from_bytes(slots[SLOT_BYTES * place :][:SLOT_BYTES], "big")
            yield from _walk(self._groups(file), self.header, newest, wanted, begin_ms, end_ms)

    def verify(self, begin: int, count: int) -> bool:
        """Read some groups back: groups of slots first, then groups of entries. Return False behind the last group.

        Raises `IndexDamageError`.
        """
        slot_groups, end = self._layout.slot_groups, self._layout.slot_groups + self._layout.entry_groups
        with self._opened() as file:
            groups = self._groups(file)
            for group in range(begin, min(begin + count, end)):
                if group < slot_groups:
                    _slot_group(file, self.path, self._layout, group)
                else:
                    groups.read(group - slot_groups)
        return begin + count < end

    @contextmanager
    def _opened(self) -> Iterator[File]:
        try:
            file = self._disk.open(self.path)
        except FileNotFoundError as error:
            raise IndexDamageError(f"{self.path} is gone") from error
        try:
            yield file
        finally:
            file.close()

    def _groups(self, file: File) -> _EntryGroups:
        layout, path = self._layout, self.path
        return _EntryGroups(
            file, path, layout, self.header.next_entry, lambda group: _read_sum(file, path, layout.entry_sum_at(group))
        )


class ActiveIndexFile:
    """The file that keys are added to. Every call blocks. No two calls may run at the same time."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        layout: IndexLayout,
        header: IndexHeader,
        slots_entries: int,
        last_sum: int = _SUM_WITHOUT_ENTRIES,
    ) -> None:
        """Open the file as a checkpoint describes it, or create it if `header` says that it is empty.

        The checkpoint gives `header`, slots on disk that cover entries below `slots_entries`, and the checksum of the
        last group of entries. Raises FileNotFoundError, ValueError or `IndexDamageError` if the file is not what the
        checkpoint describes.
        """
        self.path = path
        self.header = header
        self._layout = layout
        self._sums: NDArray[np.uint32] = np.zeros(layout.entry_groups + 1, np.uint32)
        self._sums_written = 0
        """Number of groups of entries whose checksums are in the file."""
        fresh = header.next_entry == 1
        if fresh:
            disk.unlink(path)
        self._file = disk.open(path, create=fresh)
        # Anonymous memory, not the file: its pages cost nothing until they are used.
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, SLOT_BYTES * layout.slots, flags=private)
        self._slots: NDArray[np.int32] = np.frombuffer(memory, np.int32)
        if fresh:
            self._file.pwrite(bytes(SUM_BYTES), layout.entry_sum_at(layout.entry_groups - 1))
            self._sums[0] = _SUM_WITHOUT_ENTRIES
        else:
            if self._file.size() < layout.entry_at(header.next_entry):
                found = self._file.size()
                self.close()
                raise ValueError(f"{path} has {found} bytes, too few for {header}")
            try:
                self._load_sums(last_sum)
                self._load_slots(slots_entries)
            except BaseException:
                self.close()
                raise

    @property
    def full(self) -> bool:
        """True if no entry fits any more."""
        return self.header.next_entry >= self._layout.entries

    @property
    def room(self) -> int:
        """Number of entries that still fit."""
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
        # After the sort, the keys of a slot are side by side, each behind its predecessor.
        slots = slots[in_order]
        numbers = (in_order + header.next_entry).astype(np.int32)
        first = np.append(True, slots[1:] != slots[:-1])
        last = np.append(first[1:], True)
        on_top = self._slots[slots]
        entries = np.empty(len(keys), _ENTRIES)
        entries["hash"], entries["position"] = keys["hash"], keys["position"]
        entries["seconds"] = np.clip((keys["stored_ms"] - begin_timestamp) // 1000, -_INT_MAX, _INT_MAX)
        entries["previous"][in_order] = np.where(first, on_top, np.roll(numbers, 1))
        # Slots follow the write. After a failed write they would name entries that are not there, and end the chains.
        data = entries.tobytes()
        self._file.pwrite(data, self._layout.entry_at(header.next_entry))
        self._add_sums(data, header.next_entry)
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
        """Yield the physical offsets of entries with the hash `wanted` and a store time in the range, newest first.

        Other keys may have the same hash.
        """
        newest = int(self._slots[wanted % self._layout.slots])
        return _walk(self._groups(), self.header, newest, wanted, begin_ms, end_ms)

    def verify(self, begin: int, count: int) -> bool:
        """Read some groups of entries back. Return False behind the last group. Raises `IndexDamageError`."""
        groups, end = self._groups(), -(-self.header.next_entry // GROUP_ENTRIES)
        for group in range(begin, min(begin + count, end)):
            groups.read(group)
        return begin + count < end

    @property
    def last_sum(self) -> int:
        """The checksum of the last group of entries, to which more entries may be added."""
        return int(self._sums[self.header.next_entry // GROUP_ENTRIES])

    def sync_entries(self) -> None:
        """Write the header, and make all entries durable with the checksums of full groups. A full file gets all
        checksums.
        """
        self._file.pwrite(self.header.pack(), 0)
        full = self.header.next_entry // GROUP_ENTRIES
        end = self._layout.entry_groups if self.full else full
        sums = self._sums[self._sums_written : end]
        if len(sums):
            self._file.pwrite(sums.astype(">u4").tobytes(), self._layout.entry_sum_at(self._sums_written))
            self._sums_written = full
        self._file.datasync()

    def write_slots(self) -> None:
        """Write all slots in use. While this runs, the slots on disk are worth nothing."""
        for begin in range(0, len(self._slots), _PIECE_SLOTS):
            piece = self._slots[begin : begin + _PIECE_SLOTS]
            if piece.any():
                data = piece.astype(">i4").tobytes()
                self._file.pwrite(data, HEADER_BYTES + SLOT_BYTES * begin)
                step = SLOT_BYTES * GROUP_SLOTS
                sums = [crc32(data[at : at + step]) for at in range(0, len(data), step)]
                self._file.pwrite(np.array(sums, ">u4").tobytes(), self._layout.slot_sum_at(begin // GROUP_SLOTS))

    def close(self) -> None:
        """Close the file. Its memory is freed once nothing refers to it: an exception may still refer to a piece."""
        self._file.close()
        self._slots = np.empty(0, np.int32)

    def _load_slots(self, slots_entries: int) -> None:
        if slots_entries > 1:
            for group in range(self._layout.slot_groups):
                piece = np.frombuffer(_slot_group(self._file, self.path, self._layout, group), ">i4")
                if piece.any():
                    self._slots[GROUP_SLOTS * group :][: len(piece)] = piece
        groups, first = self._groups(), max(slots_entries, 1)
        for group in range(first // GROUP_ENTRIES, -(-self.header.next_entry // GROUP_ENTRIES)):
            begin = max(first, GROUP_ENTRIES * group)
            entries = np.frombuffer(groups.read(group), _ENTRIES)[begin - GROUP_ENTRIES * group :]
            numbers = np.arange(begin, begin + len(entries), dtype=np.int32)
            np.maximum.at(self._slots, entries["hash"] % self._layout.slots, numbers)

    def _groups(self) -> _EntryGroups:
        sums = self._sums
        return _EntryGroups(self._file, self.path, self._layout, self.header.next_entry, lambda group: int(sums[group]))

    def _add_sums(self, data: bytes, number: int) -> None:
        """Add entries that were written from a number on to the checksums of their groups."""
        at = 0
        while at < len(data):
            group, place = divmod(number, GROUP_ENTRIES)
            count = min(GROUP_ENTRIES - place, (len(data) - at) // ENTRY_BYTES)
            end = at + ENTRY_BYTES * count
            self._sums[group] = crc32(data[at:end], int(self._sums[group]))
            at, number = end, number + count

    def _load_sums(self, last_sum: int) -> None:
        full = self.header.next_entry // GROUP_ENTRIES
        if full:
            data = _read(self._file, self.path, SUM_BYTES * full, self._layout.entry_sum_at(0))
            self._sums[:full] = np.frombuffer(data, ">u4")
        self._sums[full] = last_sum
        self._sums_written = full


def _walk(
    groups: _EntryGroups, header: IndexHeader, number: int, wanted: int, begin_ms: int, end_ms: int
) -> Iterator[int]:
    for _ in range(MAX_CHAIN_STEPS):
        if not 0 < number < header.next_entry:
            return
        code, position, seconds, previous = groups.entry(number)
        second_ms = header.begin_timestamp + seconds * 1000
        if code == wanted and second_ms + 999 >= begin_ms and second_ms <= end_ms:
            yield position
        number = previous if previous < number else 0
