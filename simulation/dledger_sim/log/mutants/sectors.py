"""Bugs of readers of unreadable sectors. Only scenario `sectors` has these."""

from __future__ import annotations

from dledger.store import unreadable
from dledger.store.slots import SLOT_SPACING_BYTES, SlotFile, encode_slot
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("sectors")

CATALOGUE.add(
    "unreadable-is-an-error",
    "a node starts with a sector that it cannot read",
    (unreadable, "UNREADABLE", ()),
)


def _write_in_part(self: SlotFile, number: int, sequence: int, payload: bytes) -> None:
    self._file.pwrite(encode_slot(sequence, payload), number * SLOT_SPACING_BYTES)


CATALOGUE.add(
    "slots-written-in-part",
    "a slot whose page cannot be read is written anew",
    (SlotFile, "write", _write_in_part),
)
