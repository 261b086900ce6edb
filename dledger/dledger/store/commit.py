"""Saved commit index, for the next start and for offline checks.

`raft/commit` has two slots, with the index as 8 bytes, signed. It is written lazily and never synced on its own.
It may lag behind the commit index, and is never ahead of it.
"""

from __future__ import annotations

import struct

from dledger.store.disk import Disk
from dledger.store.slots import SlotFile

PATH = "raft/commit"

_INDEX = struct.Struct(">q")


class SavedCommit:
    """File of the saved commit index; `index` is -1 if none was saved."""

    __slots__ = ("_sequence", "_slots", "index")

    def __init__(self, slots: SlotFile, index: int, sequence: int) -> None:
        self.index = index
        self._slots = slots
        self._sequence = sequence

    @staticmethod
    def read(disk: Disk) -> int:
        """Return the newest valid index, -1 if there is none. Changes nothing."""
        slots = SlotFile.open(disk, PATH)
        if slots is None:
            return -1
        try:
            slots_found = slots.read()
        finally:
            slots.close()
        return int(_INDEX.unpack(slots_found[0].payload)[0]) if slots_found else -1

    @classmethod
    def open(cls, disk: Disk) -> SavedCommit:
        """Open the file. A missing file is made."""
        slots = SlotFile.open(disk, PATH)
        if slots is None:
            return cls(SlotFile.create(disk, PATH, _INDEX.pack(-1)), -1, 2)
        found = slots.read()
        if not found:
            return cls(slots, -1, 0)
        return cls(slots, int(_INDEX.unpack(found[0].payload)[0]), found[0].sequence)

    def save(self, index: int) -> None:
        """Write the index, without syncing it."""
        self._sequence += 1
        self._slots.write(self._sequence & 1, self._sequence, _INDEX.pack(index))
        self.index = index

    def sync(self) -> None:
        """Make the saved index durable."""
        self._slots.sync()

    def close(self) -> None:
        """Close the file."""
        self._slots.close()
