"""Slots for small values that must survive a torn write: checksummed, one per 4 KiB block of a file."""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from dledger.store.disk import Disk, File, write_file_durably
from dledger.store.unreadable import salvage
from dledger_base.checksum import crc32
from dledger_base.invariants import invariant

SLOT_SPACING_BYTES = 4096
MAX_PAYLOAD_BYTES = 480
SLOTS = 2

_HEAD = struct.Struct(">4sI")
_REST = struct.Struct(">QI")
_MAGIC = b"DLsl"


class Slot(NamedTuple):
    """One valid slot: its number (0 or 1), its sequence and its payload."""

    number: int
    sequence: int
    payload: bytes


def encode_slot(sequence: int, payload: bytes) -> bytes:
    """Return the bytes of a slot."""
    invariant(len(payload) <= MAX_PAYLOAD_BYTES, "a slot's payload fits a sector", length=len(payload))
    rest = _REST.pack(sequence, len(payload)) + payload
    return _HEAD.pack(_MAGIC, crc32(rest)) + rest


def decode_slot(number: int, block: bytes) -> Slot | None:
    """Return the slot in a block, or None if it does not verify."""
    if len(block) < _HEAD.size + _REST.size:
        return None
    magic, crc = _HEAD.unpack_from(block)
    sequence, length = _REST.unpack_from(block, _HEAD.size)
    end = _HEAD.size + _REST.size + length
    if magic != _MAGIC or length > MAX_PAYLOAD_BYTES or len(block) < end or crc32(block[_HEAD.size : end]) != crc:
        return None
    return Slot(number, sequence, block[_HEAD.size + _REST.size : end])


class SlotFile:
    """A file of two slots. The caller decides when to write which slot, and when to sync."""

    __slots__ = ("_file", "path")

    def __init__(self, path: str, file: File) -> None:
        self.path = path
        self._file = file

    @classmethod
    def open(cls, disk: Disk, path: str) -> SlotFile | None:
        """Open an existing file; None if there is none."""
        try:
            return cls(path, disk.open(path))
        except FileNotFoundError:
            return None

    @classmethod
    def create(cls, disk: Disk, path: str, payload: bytes) -> SlotFile:
        """Make the file with `payload` in both slots (sequences 1 and 2), durably, and replace an existing file.

        It is written under another name and renamed, so that a file with this name always had a valid slot.
        """
        disk.mkdir(os.path.dirname(path))
        slots = (encode_slot(number + 1, payload).ljust(SLOT_SPACING_BYTES, b"\0") for number in range(SLOTS))
        write_file_durably(disk, path, b"".join(slots))
        return cls(path, disk.open(path))

    def read(self) -> list[Slot]:
        """Return the valid slots, newest first. An unreadable slot is not valid."""
        blocks = (salvage(self._file, SLOT_SPACING_BYTES, number * SLOT_SPACING_BYTES) for number in range(SLOTS))
        slots = (decode_slot(number, block) for number, block in enumerate(blocks))
        return sorted((slot for slot in slots if slot is not None), key=lambda slot: -slot.sequence)

    def write(self, number: int, sequence: int, payload: bytes) -> None:
        """Overwrite one slot, without a sync.

        The whole block is written. For a partial write the system would first read the block, which may be unreadable.
        """
        block = encode_slot(sequence, payload).ljust(SLOT_SPACING_BYTES, b"\0")
        self._file.pwrite(block, number * SLOT_SPACING_BYTES)

    def sync(self) -> None:
        """Make written slots durable."""
        self._file.datasync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
