"""Bugs of readers of small files whose bits may have rotted. Only scenario `rot` flips such bits."""

from __future__ import annotations

import struct

import msgspec

from dledger.replica.start import boot
from dledger.replica.start.boot import BootFile, BootRecord
from dledger.store import identity, slots
from dledger.store.disk import Disk
from dledger.store.slots import Slot
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("rot")


def _same_for_all(content: dict[str, object]) -> int:
    _ = content
    return 0


CATALOGUE.add("identity-not-checked", "rot in an identity is found", (identity, "_checksum", _same_for_all))


def _read_readable(disk: Disk, now: BootRecord) -> BootRecord | None:
    _ = now
    try:
        file = disk.open(boot.PATH)
    except FileNotFoundError:
        return None
    return msgspec.json.decode(file.pread(file.size(), 0), type=BootRecord)


CATALOGUE.add(
    "boot-record-has-to-be-readable",
    "a node starts with any boot record, even an unreadable one",
    (boot, "_read", _read_readable),
)


def _decode_unchecked(number: int, block: bytes) -> Slot | None:
    sequence, length = _REST.unpack_from(block.ljust(_PAYLOAD, b"\0"), _CHECKED)
    end = _PAYLOAD + length
    return Slot(number, sequence, block[_PAYLOAD:end]) if sequence and end <= len(block) else None


_CHECKED, _REST = 8, struct.Struct(">QI")
_PAYLOAD = _CHECKED + _REST.size

CATALOGUE.add("slots-not-checked", "rot in votes and in the mark is found", (slots, "decode_slot", _decode_unchecked))


def _look_at_nothing(self: BootFile) -> int:
    _ = self
    return 0


CATALOGUE.add(
    "boot-record-not-scrubbed",
    "a boot record that rots in a running node is written anew",
    (BootFile, "scrub", _look_at_nothing),
)
