"""Unreadable bytes count as rot of the same bytes, in every file of the log."""

import errno

import msgspec
import pytest
from store_model import LoggedModel, make_identity, synced_log

from dledger.errors import CorruptionError, StorageError
from dledger.store.earlier import PLAN, EarlierPart, join_earlier
from dledger.store.hardstate import HardStateFile
from dledger.store.identity import read_identity, scrub_identity
from dledger.store.segments import segment_path
from dledger.store.slots import SlotFile
from dledger.store.unreadable import MAX_FAILED_READS, PAGE_BYTES, overwrite, renew_page, salvage
from dledger.testing.disk import SimDisk
from dledger.types import EntryMeta, HardState, ReplicaId


class Unreadable:
    """File of which no byte can be read."""

    def __init__(self) -> None:
        self.reads = 0

    def pread(self, size: int, offset: int) -> bytes:
        self.reads += 1
        raise OSError(errno.EBADMSG, "the checksum is wrong")


def made(disk: SimDisk, content: bytes) -> None:
    file = disk.open("file", create=True)
    file.pwrite(content, 0)
    file.datasync()
    file.close()


def test_only_the_unreadable_page_is_replaced_in_a_salvage(sim_disk: SimDisk):
    content = bytes(range(256)) * (10 * PAGE_BYTES // 256)
    made(sim_disk, content)
    sim_disk.spoil("file", 5 * PAGE_BYTES + 7)
    found = salvage(sim_disk.open("file"), len(content) - 100, 100)
    begin, end = 5 * PAGE_BYTES - 100, 6 * PAGE_BYTES - 100
    assert found[:begin] == content[100 : begin + 100]
    assert found[end:] == content[end + 100 :]
    assert len(found) == len(content) - 100
    assert found[begin:end] != content[begin + 100 : end + 100]


def test_a_disk_that_reads_nothing_is_not_asked_for_every_page():
    file = Unreadable()
    assert len(salvage(file, 4096 * PAGE_BYTES, 0)) == 4096 * PAGE_BYTES
    assert file.reads <= 2 * MAX_FAILED_READS


def test_another_error_of_a_read_is_no_rot(sim_disk: SimDisk):
    made(sim_disk, b"x" * PAGE_BYTES)
    sim_disk.fail(lambda operation, _: operation == "pread", errno.ENODEV)
    with pytest.raises(OSError, match="No such device"):
        salvage(sim_disk.open("file"), 10, 0)


def test_an_unreadable_page_is_written_whole(sim_disk: SimDisk):
    made(sim_disk, b"x" * (3 * PAGE_BYTES))
    sim_disk.spoil("file", PAGE_BYTES)
    file = sim_disk.open("file")
    with pytest.raises(OSError, match="Input/output"):
        file.pwrite(b"y" * 10, PAGE_BYTES + 5)
    overwrite(file, b"y" * 10, PAGE_BYTES + 5)
    assert file.pread(10, PAGE_BYTES + 5) == b"y" * 10
    assert file.pread(PAGE_BYTES, 2 * PAGE_BYTES) == b"x" * PAGE_BYTES


def test_a_write_that_fails_on_a_readable_page_is_an_error(sim_disk: SimDisk):
    made(sim_disk, b"x" * PAGE_BYTES)
    sim_disk.fail(lambda operation, _: operation == "pwrite")
    with pytest.raises(OSError, match="Input/output"):
        overwrite(sim_disk.open("file"), b"y", 5)


def test_a_file_can_be_cut_in_an_unreadable_page(sim_disk: SimDisk):
    made(sim_disk, b"x" * (2 * PAGE_BYTES))
    sim_disk.spoil("file", PAGE_BYTES)
    file = sim_disk.open("file")
    with pytest.raises(OSError, match="Input/output"):
        file.truncate(PAGE_BYTES + 10)
    renew_page(file, PAGE_BYTES + 10)
    file.truncate(PAGE_BYTES + 10)
    assert file.size() == PAGE_BYTES + 10


def test_an_unreadable_slot_is_skipped_and_can_be_rewritten(sim_disk: SimDisk):
    slots = SlotFile.create(sim_disk, "raft/slots", b"value")
    sim_disk.spoil("raft/slots", 0)
    assert [slot.number for slot in slots.read()] == [1]
    slots.write(0, 3, b"value")
    assert [slot.number for slot in slots.read()] == [0, 1]


LARGE_SEGMENT_BYTES = 64 << 10


@pytest.fixture
def model() -> LoggedModel:
    """Return a durable log of some segments of several pages each."""
    model = synced_log(count=400, segment_bytes=LARGE_SEGMENT_BYTES)
    model.log.sync_mark()
    return model


def spoil(model: LoggedModel, index: int) -> EntryMeta:
    """Make the first page of an entry unreadable."""
    meta = model.entries[index][0]
    offset = meta.position % LARGE_SEGMENT_BYTES
    model.sim.spoil(segment_path(meta.position - offset), offset)
    return meta


@pytest.mark.parametrize("index", [0, 150, 200, 399])
def test_unreadable_entries_are_corrupt_at_a_start_and_healed_by_a_peers_bytes(model: LoggedModel, index: int):
    model.log.close()
    bad = spoil(model, index)
    assert model.open().corrupt_ranges
    with pytest.raises(CorruptionError):
        model.log.read(bad.position, bad.size)
    model.heal()
    assert model.reopen().corrupt_ranges == []
    model.check()


def test_a_running_log_refuses_unreadable_entries_and_finds_their_range(model: LoggedModel):
    bad = spoil(model, 100)
    with pytest.raises(CorruptionError):
        model.log.read(bad.position, bad.size)
    with pytest.raises(CorruptionError), model.log.pin(bad.position) as pin:
        pin.read(bad.position, bad.size)
    assert model.log.read_nowait(bad.position, bad.size) is None
    assert model.log.examine(100, model.log.last_index)
    model.heal()


def test_an_unreadable_index_is_made_anew(model: LoggedModel):
    model.log.close()
    for name in model.disk.listdir("index"):
        model.sim.spoil(f"index/{name}", 0)
    assert model.open().corrupt_ranges == []
    model.check()


def test_an_index_whose_name_cannot_be_looked_up_is_made_anew(model: LoggedModel):
    model.log.close()
    is_removed, lost = False, f"index/{0:020d}"

    def strikes(operation: str, path: str) -> bool:
        nonlocal is_removed
        is_removed |= (operation, path) == ("unlink", lost)
        return (operation, path) == ("open", lost) and not is_removed

    model.sim.fail(strikes, errno.EUCLEAN, once=False)
    assert model.open().corrupt_ranges == []
    model.check()
    assert is_removed


def test_a_repair_that_cannot_be_read_back_is_a_failed_write(model: LoggedModel):
    spoil(model, 100)
    assert model.log.examine(100, model.log.last_index)
    (damaged,) = model.log.corrupt_ranges
    rewritten: list[str] = []
    model.sim.written = rewritten.append
    model.sim.fail(lambda operation, path: operation == "pread" and path in rewritten, once=False)
    with pytest.raises(StorageError, match="repairing"):
        model.log.repair(damaged.start, model.committed_bytes(damaged.start, damaged.end))


def test_an_unreadable_snapshot_is_rotten_and_is_not_served(model: LoggedModel):
    meta = model.snapshot(LARGE_SEGMENT_BYTES, bytes(100_000))
    path = f"snapshots/{LARGE_SEGMENT_BYTES:020d}"
    model.sim.spoil(path, 50_000)
    with pytest.raises(CorruptionError):
        model.snapshots.verify(meta)
    with pytest.raises(CorruptionError):
        model.snapshots.read_file(meta.position, 40_000, 20_000)
    model.sim.spoil(path, 0)
    assert model.open().corrupt_ranges == []
    assert list(model.snapshots.rotten) == [meta.position]


def test_an_unreadable_plan_costs_only_what_was_fetched(sim_disk: SimDisk):
    part = EarlierPart.resumed_or_begun(sim_disk, LARGE_SEGMENT_BYTES, "i", 0, 2 * LARGE_SEGMENT_BYTES)
    part._save(msgspec.structs.replace(part.plan, position=LARGE_SEGMENT_BYTES))
    sim_disk.spoil(PLAN, 0)
    part = EarlierPart.resumed_or_begun(sim_disk, LARGE_SEGMENT_BYTES, "i", 0, 2 * LARGE_SEGMENT_BYTES)
    assert part.plan.position == 0
    part._save(part.plan)
    sim_disk.spoil(PLAN, 0)
    assert join_earlier(sim_disk, "i", ()) is None
    assert not sim_disk.exists("earlier")


@pytest.mark.parametrize("path", ["identity.json", "identity.copy.json"])
def test_an_unreadable_identity_copy_is_rewritten(path: str, sim_disk: SimDisk):
    make_identity(sim_disk)
    identity = read_identity(sim_disk)
    sim_disk.spoil(path, 0)
    assert identity is not None
    assert read_identity(sim_disk) == identity
    assert scrub_identity(sim_disk, identity) == [path]
    assert not sim_disk.is_spoiled(path, 0)


def test_a_vote_is_lost_only_if_both_copies_are_unreadable(sim_disk: SimDisk):
    sim_disk.mkdir("raft")
    file, _ = HardStateFile.open(sim_disk)
    state = HardState(7, ReplicaId("n1", "bb"))
    file.save(state)
    file.close()
    sim_disk.spoil("raft/hardstate", 0)
    file, found = HardStateFile.open(sim_disk)
    file.close()
    assert found == state
    sim_disk.spoil("raft/hardstate", 0)
    sim_disk.spoil("raft/hardstate", PAGE_BYTES)
    assert HardStateFile.open(sim_disk)[1] is None
