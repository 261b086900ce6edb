"""Bugs of durability: data that must be durable before other code relies on it."""

# ruff: noqa: SLF001 - patches private names
from __future__ import annotations

import msgspec

from dledger.replica.snapshots.taking import Remover
from dledger.store import hardstate, reset, rewriting
from dledger.store.commit import SavedCommit
from dledger.store.disk import Disk
from dledger.store.hardstate import HardStateFile
from dledger.store.log import LogStore
from dledger.store.mark import DurableMark
from dledger.store.rewriting import Cut
from dledger.store.slots import SlotFile
from dledger.store.snapshots import _CHUNK, _COUNTS, _U32, DIRECTORY, SnapshotStore, SnapshotWriter, snapshot_path
from dledger.store.sync import SyncTicket
from dledger.types import HardState, SnapshotMeta
from dledger_base.checksum import crc32
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("log")

# ---------------------------------------------------------------- snapshots


def _finish(writer: SnapshotWriter, *, synced: bool, named: bool) -> SnapshotMeta:
    """Commit a snapshot as `SnapshotWriter.commit` does, but leave out the sync or the sync of the directory."""
    counts = _COUNTS.pack(writer._chunks, writer._bytes)
    writer._put(_CHUNK.pack(0, crc32(_U32.pack(writer._meta_crc), crc32(counts))) + counts)
    file, writer._file = writer._file, None
    assert file is not None
    try:
        file.truncate(writer._size)
        if synced:
            file.datasync()
    finally:
        file.close()
    writer._disk.rename(writer._temporary, snapshot_path(writer.meta.position))
    if named:
        writer._disk.sync_dir(DIRECTORY)
    writer._store.add(writer.meta)
    return writer.meta


CATALOGUE.add(
    "snapshot-not-synced",
    "a snapshot is synced before it gets its name",
    (SnapshotWriter, "commit", lambda self: _finish(self, synced=False, named=True)),
)
CATALOGUE.add(
    "snapshot-name-not-synced",
    "a snapshot's name is durable before anything relies on the snapshot",
    (SnapshotWriter, "commit", lambda self: _finish(self, synced=True, named=False)),
)

# ---------------------------------------------------------------- term and vote


def _open_without_a_save(disk: Disk) -> tuple[HardStateFile, HardState | None]:
    slots = SlotFile.open(disk, hardstate.PATH)
    if slots is None:
        return HardStateFile(disk, None, 0), None
    for slot in slots.read():
        return HardStateFile(disk, slots, slot.sequence), hardstate._decode(slot.payload)
    slots.close()
    return HardStateFile(disk, None, 0), None


CATALOGUE.add(
    "hard-state-not-rewritten",
    "a recovery rewrites both copies of term and vote",
    (HardStateFile, "open", staticmethod(_open_without_a_save)),
)


def _save_one_copy(self: HardStateFile, state: HardState) -> None:
    if self._slots is None:
        _real_save(self, state)
        return
    self._sequence += 1
    self._slots.write(self._sequence % 2, self._sequence, msgspec.msgpack.encode(state))
    self._slots.sync()


_real_save = HardStateFile.save

CATALOGUE.add(
    "vote-saved-once",
    "term and vote are saved in both copies",
    (HardStateFile, "save", _save_one_copy),
)

# ---------------------------------------------------------------- the mark


def _truncate_but_durable(self: LogStore, cut: Cut) -> None:
    kept = self._durable_end
    _real_take_cut(self, cut)
    self._durable_end = kept


_real_take_cut = LogStore.take_cut

CATALOGUE.add(
    "durable-end-not-lowered",
    "a truncation lowers the durable end",
    (LogStore, "take_cut", _truncate_but_durable),
)


def _count_what_came_later(self: LogStore, ticket: SyncTicket) -> None:
    _real_finish_sync(self, ticket)
    if ticket.target.generation == self.generation:
        self._durable_end = self.end_position


_real_finish_sync = LogStore.finish_sync

CATALOGUE.add(
    "sync-counts-what-came-later",
    "a sync vouches only for bytes that were written before it began",
    (LogStore, "finish_sync", _count_what_came_later),
)


def _remove_at_once(self: Remover) -> None:
    if not self._is_running and self._store.leftovers.due:
        self._is_running = True
        self._store.leftovers.note_mark_synced(self._store.leftovers.dropped)
        self._on_mark_synced(None)


CATALOGUE.add(
    "trim-before-mark-synced",
    "the durable mark lies behind all bytes that a trim removes",
    (Remover, "tick", _remove_at_once),
)

# ---------------------------------------------------------------- resets and recovery


def _announce_nothing(disk: Disk, base: SnapshotMeta) -> None:
    _ = disk, base


CATALOGUE.add(
    "reset-not-announced",
    "the intent to replace the log is durable before any part of the log is removed",
    (rewriting, "announce_reset", _announce_nothing),
)


def _announce_without_sync(disk: Disk, base: SnapshotMeta) -> None:
    reset.prepare_reset(disk, base)
    disk.rename(f"{reset.PATH}.tmp", reset.PATH)


CATALOGUE.add(
    "reset-announced-unsynced",
    "the intent to replace the log survives a power loss",
    (rewriting, "announce_reset", _announce_without_sync),
)


def _forget_the_intent_first(
    disk: Disk, snapshots: SnapshotStore, mark: DurableMark, commit: SavedCommit, base: SnapshotMeta, generation: int
) -> None:
    disk.unlink(reset.PATH)
    disk.sync_dir("raft")
    _real_perform(disk, snapshots, mark, commit, base, generation)


_real_perform = reset.perform_reset

CATALOGUE.add(
    "reset-forgotten-too-early",
    "the intent to replace the log lasts until the log is replaced",
    (rewriting, "perform_reset", _forget_the_intent_first),
)
