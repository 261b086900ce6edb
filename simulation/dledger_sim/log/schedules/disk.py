"""Schedules written by hand for the store: entries that must survive a power loss, and entries that must not return."""

import errno
from random import Random

from dledger.errors import LogFullError, StorageError
from dledger.format import HEADER_BYTES, seal
from dledger.store.hardstate import HardStateFile
from dledger.store.log import LogStore
from dledger.store.mark import PATH as MARK_PATH
from dledger.store.segments import segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import BLOCK_BYTES, SimDisk
from dledger.types import EntryKind, HardState, Membership, SnapshotMeta
from dledger_sim.engine_group import replica

SEGMENT_BYTES = 4096


class DiskLog:
    """Log on a simulated disk."""

    def __init__(self, disk: SimDisk, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.disk = disk
        self.segment_bytes = segment_bytes
        self.open()

    def open(self) -> None:
        self.store, self.recovery = LogStore.open(
            self.disk, segment_bytes=self.segment_bytes, snapshots=SnapshotStore.open(self.disk)
        )

    def append(self, count: int, term: int, body_bytes: int = 100) -> None:
        for _ in range(count):
            entry = bytearray(HEADER_BYTES + body_bytes)
            store = self.store
            meta = seal(
                entry,
                EntryKind.GROUP,
                store.last_index + 1,
                term,
                store.next_position(len(entry)),
                0,
                store.last_chain,
            )
            while not store.claim([meta]):
                store.reserve(store.need_for([meta]))
            store.append([meta], entry)

    def sync(self) -> None:
        ticket = self.store.begin_sync()
        assert ticket is not None
        ticket.run()
        self.store.finish_sync(ticket)


def vote_after_power_loss() -> None:
    """Check that term and vote survive any outcome of a power loss for the file's unsynced writes."""
    for seed in range(20):
        disk = SimDisk(Random(seed))
        disk.mkdir("raft")
        disk.sync_dir(".")
        file, state = HardStateFile.open(disk)
        assert state is None
        for term in range(1, 4):
            file.save(HardState(term, replica("a")))
        disk.crash(Random(seed), "random")
        assert HardStateFile.open(disk)[1] == HardState(3, replica("a"))


def mark_below_a_truncation() -> None:
    """Check that the durable mark is lowered before entries are cut off. A crash right then is no corruption."""
    log = DiskLog(SimDisk(Random(1)))
    log.append(20, term=1)
    log.sync()
    log.store.sync_mark()
    log.store.take_cut(log.store.cut(5))
    log.append(2, term=2, body_bytes=30)
    log.disk.crash(Random(1), "none")
    log.open()
    assert log.recovery.last_index == 4
    assert log.recovery.corrupt_ranges == []
    assert not log.recovery.notes


def cache_after_a_failed_sync() -> None:
    """Check that a recovery rewrites the bytes that it reads.

    After a failed fdatasync the page cache shows bytes that no later sync makes durable.
    """
    log = DiskLog(SimDisk(Random(1)))
    log.append(5, term=1)
    log.sync()
    log.append(5, term=1)
    log.disk.fail(lambda operation, path: operation == "datasync" and path.startswith("commitlog"), errno.EIO)
    try:
        log.sync()
    except StorageError:
        pass
    else:
        raise AssertionError("a failed sync is an error")
    log.disk.kill()
    log.open()
    reported = log.recovery.durable_index
    assert reported == 9
    log.disk.crash(Random(2), "none")
    log.open()
    assert log.recovery.last_index == reported
    assert log.recovery.corrupt_ranges == []


def names_of_a_killed_process() -> None:
    """Check the files of a killed process: once the next process relies on them, contents and names must be durable."""
    disk = SimDisk(Random(1))
    disk.names.in_order = False
    log = DiskLog(disk)
    log.append(5, term=1)
    log.sync()
    log.append(120, term=1)
    disk.kill()
    log.open()
    reported = log.recovery.durable_index
    assert reported == 124
    disk.crash(Random(2), "none")
    log.open()
    assert log.recovery.last_index == reported
    assert log.recovery.corrupt_ranges == []


def truncation_on_a_full_disk() -> None:
    """Check that entries that replace the end of a log on a full disk reuse its space.

    Other programs have taken all other space.
    """
    log = DiskLog(SimDisk(Random(1)), segment_bytes=16 * BLOCK_BYTES)
    log.append(60, term=1, body_bytes=BLOCK_BYTES // 2)
    log.disk.fill_up()
    for first_index in (50, 10):
        log.store.take_cut(log.store.cut(first_index))
        try:
            log.append(10, term=first_index, body_bytes=BLOCK_BYTES // 2)
        except LogFullError as error:
            raise AssertionError(f"no space for what replaces entries {first_index} to 59") from error
    log.sync()


def truncation_before_a_received_snapshot() -> None:
    """Check that the replacement of an entry that no other node had survives a power loss.

    Meanwhile a snapshot was received that has the same last entry. It stands at the segment where the replacement
    begins, behind the entry that is cut off.
    """
    log = DiskLog(SimDisk(Random(1)))
    while log.store.end_position < SEGMENT_BYTES - 400:
        log.append(1, term=1)
    shared = log.store.meta(log.store.last_index)
    log.append(1, term=1)
    log.sync()
    log.store.sync_mark()
    assert log.store.end_position < SEGMENT_BYTES
    snapshot = SnapshotMeta(SEGMENT_BYTES, shared.index, shared.term, shared.chain_crc, Membership())
    log.store.snapshots.begin(snapshot).commit()
    log.store.take_cut(log.store.cut(shared.index + 1))
    log.append(1, term=2, body_bytes=1000)
    assert log.store.meta(shared.index + 1).position == SEGMENT_BYTES
    log.sync()
    log.disk.crash(Random(1), "none")
    log.open()
    assert (log.recovery.last_index, log.recovery.last_term) == (shared.index + 1, 2)
    assert log.recovery.corrupt_ranges == []


def sync_across_a_truncation() -> None:
    """Check a sync that began before a truncation and ends after it. It must lift no mark and vouch for no replacement.

    Seeds need the fault `usurped` to get there. A leader that is cut off gives up within a second. Unless its disk
    takes that long, its last writes are synced before another leader truncates them.
    """
    log = DiskLog(SimDisk(Random(1)))
    log.append(10, term=1)
    ticket = log.store.begin_sync()
    assert ticket is not None
    ticket.run()
    log.store.take_cut(log.store.cut(4))
    log.append(8, term=2, body_bytes=90)
    log.store.finish_sync(ticket)
    assert log.store.durable < 4, "the sync covers truncated entries, not the entries that replaced them"
    log.store.sync_mark()
    log.disk.crash(Random(1), "none")
    log.open()
    assert log.recovery.corrupt_ranges == []
    assert log.recovery.last_index < 4


def mark_half_written() -> None:
    """Check the mark while one copy is half written. The other copy is the previous mark: rot below it is no torn end.

    Seeds rarely get there: the mark must be torn, and an acknowledged entry must rot before the next mark is written.
    """
    log = DiskLog(SimDisk(Random(1)))
    for _ in range(3):
        log.append(5, term=1)
        log.sync()
        log.store.sync_mark()
    rotten = log.store.meta(12)
    log.disk.fail(lambda operation, path: (operation, path) == ("pwrite", MARK_PATH), errno.EIO, torn=True)
    log.append(1, term=1)
    try:
        log.sync()
    except (OSError, StorageError):
        pass
    else:
        raise AssertionError("a write of the mark that fails is an error")
    log.disk.kill()
    log.disk.flip_bit(segment_path(0), 8 * (rotten.position + HEADER_BYTES))
    log.open()
    assert log.recovery.last_index >= 14, "acknowledged entries are cut off as a torn end"
    assert [found.first_index for found in log.recovery.corrupt_ranges] == [12]


def lost_entry_behind_a_snapshot() -> None:
    """Check the replacement of a lost entry at whose position a snapshot was taken. It may fit before that position.

    The lost entry was too large to fit there. Seeds get there once in some hundreds. They need a power loss on a
    majority at the moment in which that entry is committed but not synced. They also need a synced snapshot at the
    entry's position, and a small replacement.
    """
    log = DiskLog(SimDisk(Random(1)))
    while log.store.end_position < SEGMENT_BYTES - 400:
        log.append(1, term=1)
    last = log.store.meta(log.store.last_index)
    log.append(1, term=1, body_bytes=1000)
    log.sync()
    log.store.sync_mark()
    assert log.store.meta(last.index + 1).position == SEGMENT_BYTES
    snapshot = SnapshotMeta(SEGMENT_BYTES, last.index, last.term, last.chain_crc, Membership())
    writer = log.store.snapshots.begin(snapshot)
    writer.commit()
    log.store.take_cut(log.store.cut(last.index + 1))
    log.append(1, term=2)
    assert log.store.meta(last.index + 1).position == last.end
    assert log.store.snapshots.list() == []


DISK_SCHEDULES = (
    lost_entry_behind_a_snapshot,
    mark_half_written,
    sync_across_a_truncation,
    cache_after_a_failed_sync,
    names_of_a_killed_process,
    mark_below_a_truncation,
    truncation_before_a_received_snapshot,
    truncation_on_a_full_disk,
    vote_after_power_loss,
)
