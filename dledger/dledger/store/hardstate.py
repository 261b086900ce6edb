"""Hard state: term and vote, which a replica must never forget.

`raft/hardstate` holds two slots (`dledger.store.slots`), both with the MessagePack of `HardState`. A save writes and
syncs one slot after the other, so that at every moment at least one copy is whole.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dledger.errors import StorageError
from dledger.store.disk import Disk
from dledger.store.slots import SLOTS, SlotFile
from dledger.types import HardState

PATH = "raft/hardstate"

_decode = msgspec.msgpack.Decoder(HardState).decode


class HardStateFile:
    """File of the hard state. Calls block, and may come from one thread at a time."""

    __slots__ = ("_disk", "_payload", "_sequence", "_slots")

    def __init__(self, disk: Disk, slots: SlotFile | None, sequence: int) -> None:
        self._disk = disk
        self._slots = slots
        self._sequence = sequence
        self._payload = b""
        """Payload that both copies hold."""

    @classmethod
    def open(cls, disk: Disk) -> tuple[HardStateFile, HardState | None]:
        """Open the file, and return it with the newest valid state.

        The state is None if there is none, because the directory is new or was wiped. Both copies are rewritten: after
        a failed save the page cache may differ from the disk.
        """
        slots = SlotFile.open(disk, PATH)
        if slots is None:
            return cls(disk, None, 0), None
        for slot in slots.read():
            try:
                state = _decode(slot.payload)
            except msgspec.MsgspecError:
                continue
            opened = cls(disk, slots, slot.sequence)
            opened.save(state)
            return opened, state
        slots.close()
        return cls(disk, None, 0), None

    def save(self, state: HardState) -> None:
        """Write and sync both copies. Raises `StorageError`; after that the replica must stop."""
        self._payload = msgspec.msgpack.encode(state)
        try:
            if self._slots is None:
                self._slots = SlotFile.create(self._disk, PATH, self._payload)
                self._sequence = SLOTS
            else:
                self._write(self._slots, range(SLOTS))
        except OSError as error:
            raise StorageError(f"saving term {state.term} to {PATH} failed: {error}") from error

    def scrub(self) -> int:
        """Write each rotten copy anew, and return the number of rotten copies. Raises `StorageError` as `save` does.

        The saved content is known here, so a copy that verifies with other content has rotted as well.
        """
        if self._slots is None:
            return 0
        try:
            whole_slots = {slot.number for slot in self._slots.read() if slot.payload == self._payload}
            rotten = [number for number in range(SLOTS) if number not in whole_slots]
            self._write(self._slots, rotten)
        except OSError as error:
            raise StorageError(f"scrubbing {PATH} failed: {error}") from error
        return len(rotten)

    def _write(self, slots: SlotFile, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._sequence += 1
            slots.write(number, self._sequence, self._payload)
            slots.sync()

    def close(self) -> None:
        """Close the file."""
        if self._slots is not None:
            self._slots.close()
            self._slots = None
