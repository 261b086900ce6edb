"""Bugs of late sync tickets, half-written marks and votes, and restarts."""

# ruff: noqa: SLF001 - patches private names
from __future__ import annotations

import msgspec

from dledger.store import hardstate, slots
from dledger.store import log as log_module
from dledger.store.disk import Disk
from dledger.store.hardstate import HardStateFile
from dledger.store.log import LogStore
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.slots import Slot, SlotFile
from dledger.store.snapshots import SnapshotStore, SnapshotWriter, snapshot_path
from dledger.store.sync import SyncTicket
from dledger.types import HardState, SnapshotMeta
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules.disk import mark_half_written, sync_across_a_truncation

CATALOGUE = Catalogue("modes")

# ---------------------------------------------------------------- stale tickets


def _write_whatever_comes(self: DurableMark, value: MarkValue) -> None:
    with self._lock:
        self._write(value)


CATALOGUE.add(
    "stale-ticket-lifts-mark",
    "a sync that began before a truncation does not lift the durable mark",
    (DurableMark, "write", _write_whatever_comes),
    schedule=sync_across_a_truncation,
)


def _count_any_ticket(self: LogStore, ticket: SyncTicket) -> None:
    _real_finish_sync(self, ticket)
    self.durable = max(self.durable, min(ticket.target.index, self.last_index))
    self._durable_end = max(self._durable_end, min(ticket.target.position, self.end_position))


_real_finish_sync = LogStore.finish_sync

CATALOGUE.add(
    "stale-ticket-counts",
    "a sync that began before a truncation does not vouch for the entries that replace the truncated ones",
    (LogStore, "finish_sync", _count_any_ticket),
    schedule=sync_across_a_truncation,
)

# ---------------------------------------------------------------- half-written marks and votes


def _sync_in_place(self: DurableMark) -> None:
    if self._is_unsynced:
        self._slots.sync()
        self._is_unsynced = False


CATALOGUE.add(
    "mark-in-one-slot",
    "one copy of the durable mark is whole while the other copy is written",
    (DurableMark, "_sync", _sync_in_place),
    schedule=mark_half_written,
)


def _decode_unchecked(number: int, block: bytes) -> Slot | None:
    if len(block) < slots._HEAD.size + slots._REST.size or block[:4] != slots._MAGIC:
        return None
    sequence, length = slots._REST.unpack_from(block, slots._HEAD.size)
    begin = slots._HEAD.size + slots._REST.size
    return Slot(number, sequence, block[begin : begin + length])


CATALOGUE.add(
    "slot-unchecked",
    "a half-written mark or vote does not count",
    (slots, "decode_slot", _decode_unchecked),
)

# ---------------------------------------------------------------- starts


def _open_with_one_copy(disk: Disk) -> tuple[HardStateFile, HardState | None]:
    file = SlotFile.open(disk, hardstate.PATH)
    if file is None:
        return HardStateFile(disk, None, 0), None
    for slot in file.read():
        state = hardstate._decode(slot.payload)
        opened = HardStateFile(disk, file, slot.sequence)
        opened._payload = msgspec.msgpack.encode(state)
        opened._write(file, (0,))
        return opened, state
    file.close()
    return HardStateFile(disk, None, 0), None


CATALOGUE.add(
    "start-rewrites-one-copy",
    "a start rewrites both copies of term and vote",
    (HardStateFile, "open", staticmethod(_open_with_one_copy)),
    scenario="threads",  # a save must be interrupted between its copies
)


def _set_unsynced(self: DurableMark, value: MarkValue) -> None:
    with self._lock:
        self._write(value)


CATALOGUE.add(
    "mark-set-unsynced",
    "a start that sets the durable mark also syncs it",
    (DurableMark, "lower_and_sync", _set_unsynced),
)
CATALOGUE.add(
    "segment-ends-without-blank",
    "a segment that has no room for an entry ends with a blank, so that a start goes on to the next segment",
    (log_module, "blank", bytes),
)


def _name_first(self: SnapshotWriter, store: SnapshotStore, disk: Disk, meta: SnapshotMeta) -> None:
    _real_writer(self, store, disk, meta)
    self._temporary = snapshot_path(meta.position)


_real_writer = SnapshotWriter.__init__

CATALOGUE.add(
    "snapshot-named-first",
    "a snapshot gets its name once it is whole",
    (SnapshotWriter, "__init__", _name_first),
)
