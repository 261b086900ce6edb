"""Bugs of the store that a power loss reveals."""

from __future__ import annotations

from dledger.store import rewriting
from dledger.store.disk import Disk, File
from dledger.store.hardstate import HardStateFile
from dledger.store.log import LogStore
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.reader import LogReader
from dledger.store.recovery import _Recoverer
from dledger.store.slots import SlotFile
from dledger.store.sync import SyncTicket
from dledger.types import EntryMeta, HardState, SnapshotMeta
from dledger_sim.log.mutants.catalogue import Catalogue
from dledger_sim.log.schedules import disk as disk_schedules

CATALOGUE = Catalogue("log")


def _save_without_sync(self: HardStateFile, state: HardState) -> None:
    synced = SlotFile.sync
    setattr(SlotFile, "sync", lambda _slots: None)  # noqa: B010 - a method is replaced for a moment
    try:
        _real_save(self, state)
    finally:
        setattr(SlotFile, "sync", synced)  # noqa: B010 - and put back


_real_save = HardStateFile.save

CATALOGUE.add(
    "vote-not-synced",
    "a vote survives a power loss",
    (HardStateFile, "save", _save_without_sync),
    schedule=disk_schedules.vote_after_power_loss,
)


def _forget_the_vote(disk: Disk) -> tuple[HardStateFile, HardState | None]:
    file, state = _real_open(disk)
    return file, None if state is None else HardState(state.term, None)


_real_open = HardStateFile.open

CATALOGUE.add(
    "vote-forgotten",
    "a restart remembers the vote",
    (HardStateFile, "open", staticmethod(_forget_the_vote)),
    schedule=disk_schedules.vote_after_power_loss,
)


def _rewrite_nothing(self: _Recoverer, position: int, end: int) -> None:
    _ = position, end, self


CATALOGUE.add(
    "recovery-trusts-the-cache",
    "a recovery also writes and syncs all bytes that it reads, because the page cache may show bytes that the disk "
    "lacks",
    (_Recoverer, "rewrite", _rewrite_nothing),
    schedule=disk_schedules.cache_after_a_failed_sync,
)


def _lower_in_memory(self: DurableMark, ceiling: MarkValue) -> None:
    with self._lock:
        self._value = ceiling


CATALOGUE.add(
    "mark-not-lowered",
    "the durable mark is lowered before a truncation",
    (DurableMark, "lower", _lower_in_memory),
    schedule=disk_schedules.mark_below_a_truncation,
)


def _snapshot_with_the_same_last_entry(self: LogReader, index: int) -> SnapshotMeta | None:
    return next((meta for meta in self.snapshots.list() if meta.last_index == index - 1), None)


CATALOGUE.add(
    "truncation-believes-any-snapshot",
    "after a truncation the log's own entries determine its end, unless a snapshot ends exactly there",
    (LogReader, "_snapshot_before", _snapshot_with_the_same_last_entry),
    schedule=disk_schedules.truncation_before_a_received_snapshot,
)


def _mark_first(self: LogStore, *, whole_index: bool = False) -> SyncTicket | None:
    ticket = _real_begin_sync(self, whole_index=whole_index)
    if ticket is not None:
        self._mark.write(ticket.target)
        self._mark.sync()
    return ticket


_real_begin_sync = LogStore.begin_sync

CATALOGUE.add(
    "mark-before-sync", "the durable mark never exceeds what is durable", (LogStore, "begin_sync", _mark_first)
)


def _roll_without_directories(self: LogStore, first: EntryMeta) -> None:
    _real_roll(self, first)
    self._directories_dirty = False


_real_roll = LogStore._roll  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "directory-not-synced",
    "a sync that spans a roll covers the directory",
    (LogStore, "_roll", _roll_without_directories),
)


def _sync_last_segment(self: SyncTicket) -> None:
    self._unsynced = self._unsynced[-1:]
    _real_run(self)


_real_run = SyncTicket.run

CATALOGUE.add(
    "old-segment-not-synced",
    "a sync that spans a roll covers the old segment",
    (SyncTicket, "run", _sync_last_segment),
)


def _cut_off(file: File, begin: int, end: int) -> bool:
    if begin < end:
        file.truncate(begin)
    return begin >= end


CATALOGUE.add(
    "truncation-gives-space-away",
    "entries that replace a void tail get the tail's space, because a full disk gives no space back",
    (rewriting, "erase", _cut_off),
    schedule=disk_schedules.truncation_on_a_full_disk,
)
