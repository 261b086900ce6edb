"""Durable mark: the position up to which the log is known to be on stable storage.

Recovery ends the log at the first invalid entry at or above the mark (a torn write). An invalid entry below the mark is
corruption. So the mark may lag behind the truth, but must never exceed it. It is written after an fdatasync, and
lowered and synced before a truncation.

`raft/mark` holds two slots (`dledger.store.slots`). Payload, big-endian:

    offset  size  field
         0     8  position    end of the durable log
         8     8  index       of the last durable entry, -1 = none
        16     8  term        of that entry
        24     4  chain       chain crc of that entry
        28     8  generation  truncations and resets since the log was opened
        36     1  clean       1 = written by an orderly stop

Writes go to one slot until it is synced, then to the other, so that at every moment one slot is whole.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from threading import Lock

from dledger.store.disk import Disk
from dledger.store.slots import SlotFile

PATH = "raft/mark"

_PAYLOAD = struct.Struct(">qqqIQ?")


@dataclass(frozen=True, slots=True)
class MarkValue:
    """Content of the mark; the module's table shows its fields."""

    position: int = 0
    index: int = -1
    term: int = 0
    chain: int = 0
    generation: int = 0
    clean: bool = False

    def encode(self) -> bytes:
        """Return the payload of a slot."""
        return _PAYLOAD.pack(self.position, self.index, self.term, self.chain, self.generation, self.clean)

    @staticmethod
    def decode(payload: bytes) -> MarkValue:
        """Decode a payload of `encode`."""
        return MarkValue(*_PAYLOAD.unpack(payload))


class DurableMark:
    """File of the mark.

    `write` is called on the event loop when a data sync has ended. All calls that sync or read the file are made on the
    flush thread between two data syncs, so that `write` waits for no disk. A lock separates them all the same. A value
    of an older generation is ignored, so that a data sync that began before a truncation cannot raise the mark.
    """

    def __init__(self, slots: SlotFile, newest: MarkValue, number: int, sequence: int) -> None:
        self._slots = slots
        self._value = newest
        self._newest_payload = newest.encode()
        """Content of the newest slot. The value's generation may change without a write."""
        self._number = number
        self._sequence = sequence
        self._is_unsynced = False
        self._lock = Lock()

    @staticmethod
    def read(disk: Disk) -> MarkValue | None:
        """Return the newest valid value; None if the file is missing or no slot is valid. Changes nothing."""
        slots = SlotFile.open(disk, PATH)
        if slots is None:
            return None
        try:
            found = slots.read()
        finally:
            slots.close()
        return MarkValue.decode(found[0].payload) if found else None

    @classmethod
    def open(cls, disk: Disk) -> tuple[DurableMark, MarkValue | None]:
        """Open the mark, and return it with its newest valid value.

        The value is None if no slot was valid: the directory is new, or its mark was lost. The file is then made anew.
        """
        slots = SlotFile.open(disk, PATH)
        slots_found = slots.read() if slots is not None else []
        if slots is None or not slots_found:
            if slots is not None:
                slots.close()
            value = MarkValue()
            return cls(SlotFile.create(disk, PATH, value.encode()), value, 0, 2), None
        value = MarkValue.decode(slots_found[0].payload)
        mark = cls(slots, value, slots_found[0].number, slots_found[0].sequence)
        # The newest slot may never have been synced, or its sync failed. Make it durable before the other slot is
        # overwritten.
        mark.lower_and_sync(value)
        return mark, value

    @property
    def value(self) -> MarkValue:
        """The value written last."""
        return self._value

    def write(self, value: MarkValue) -> None:
        """Advance the mark, without a sync. Ignored if a truncation came between."""
        with self._lock:
            if value.generation >= self._value.generation:
                self._write(value)

    def sync(self) -> None:
        """Make the written value durable, unless it already is."""
        with self._lock:
            self._sync()

    def lower_and_sync(self, value: MarkValue) -> None:
        """Set the mark to any value, durably."""
        with self._lock:
            self._write(value)
            self._sync()

    def lower(self, ceiling: MarkValue) -> None:
        """Lower the mark to at most `ceiling`, durably, before a truncation.

        Values of generations before the ceiling's are ignored from here on.
        """
        with self._lock:
            if self._value.position > ceiling.position:
                self._write(ceiling)
                self._sync()
            else:
                self._value = replace(self._value, generation=ceiling.generation)

    def scrub(self) -> int:
        """Write each rotten slot anew, durably, and return the number of rotten slots. Blocks; raises `OSError`.

        The content of the newest slot is known here, so a newest slot that verifies with other content has rotted as
        well.
        """
        with self._lock:
            slots = {slot.number: slot for slot in self._slots.read()}
            newest = self._number if self._is_unsynced else 1 - self._number
            if newest in slots and slots[newest].payload != self._newest_payload:
                del slots[newest]
            rotten = [number for number in (newest, 1 - newest) if number not in slots]
            for number in rotten:
                self._number = number
                self._write(self._value)
                self._sync()
            return len(rotten)

    def close(self) -> None:
        """Close the file, without a sync."""
        self._slots.close()

    def _write(self, value: MarkValue) -> None:
        self._sequence += 1
        self._newest_payload = value.encode()
        self._slots.write(self._number, self._sequence, self._newest_payload)
        self._value = value
        self._is_unsynced = True

    def _sync(self) -> None:
        if self._is_unsynced:
            self._slots.sync()
            self._number = 1 - self._number
            self._is_unsynced = False
