import os
import random
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, body_leaving, synced_log

from dledger.errors import CorruptionError
from dledger.store.disk import OsDisk
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.recovered import Recovery
from dledger.store.segments import segment_path
from dledger.store.slots import SLOT_SPACING_BYTES, SlotFile
from dledger.testing.disk import SimDisk
from dledger.types import EntryKind, EntryMeta, SnapshotMeta


def damage(model: LoggedModel, index: int, offset: int) -> EntryMeta:
    """Flip a bit of a durable entry."""
    meta = model.entries[index][0]
    model.flip(meta.position + offset)
    return meta


@pytest.fixture
def closed(synced_sim: LoggedModel) -> LoggedModel:
    """Return a closed log of 60 durable entries over several segments."""
    synced_sim.log.close()
    return synced_sim


def check_around(model: LoggedModel, recovery: Recovery, bad: list[EntryMeta]) -> None:
    """Check that the corrupt entries are refused, all others are served, and the log accepts entries behind its end."""
    indexes = {meta.index for meta in bad}
    assert recovery.last_index == 59
    assert recovery.notes
    log = model.log
    for meta, data in model.entries:
        if meta.index in indexes:
            with pytest.raises(CorruptionError, match="do not verify"):
                log.read(meta.position, meta.size)
            with pytest.raises(CorruptionError, match="do not verify"):
                log.meta(meta.index)
        else:
            assert log.meta(meta.index) == meta
            assert log.read(meta.position, meta.size) == data
    first_bad = min(indexes, default=0)
    if first_bad > 0:
        metas, _ = log.read_entries(0, 1 << 20, verify=True)
        assert metas[-1].index < first_bad
    model.append(b"on", term=2)
    model.sync()
    assert log.read(log.meta(60).position, 4) == b"\0\0\0\1"


@pytest.mark.parametrize("offset", [0, 5, 9, 20, 28, 33, 37, 41, 46, 48, 60])
@pytest.mark.parametrize("index", [0, 7, 31, 59])
def test_damage_below_the_mark_is_reported_and_not_cut_off(closed: LoggedModel, index: int, offset: int):
    meta = damage(closed, index, min(offset, closed.entries[index][0].size - 1))
    recovery = closed.open()
    assert [(bad.start, bad.end) for bad in recovery.corrupt_ranges] == [(meta.position, meta.end)]
    assert [(bad.first_index, bad.next_index) for bad in recovery.corrupt_ranges] == [(index, index + 1)]
    check_around(closed, recovery, [meta])


def test_damage_of_neighbours_is_one_range(closed: LoggedModel):
    bad = [damage(closed, index, 50) for index in (20, 21, 22)]
    recovery = closed.open()
    assert [bad[:2] for bad in recovery.corrupt_ranges] == [(bad[0].position, bad[-1].end)]
    check_around(closed, recovery, bad)


def test_a_damaged_header_without_an_index_costs_the_rest_of_its_segment(closed: LoggedModel):
    closed.lose_index()
    meta = damage(closed, 20, 2)
    end = (meta.position // SEGMENT_BYTES + 1) * SEGMENT_BYTES
    bad = [other for other, _ in closed.entries if meta.position <= other.position < end]
    recovery = closed.open()
    assert [bad[:2] for bad in recovery.corrupt_ranges] == [(meta.position, end)]
    check_around(closed, recovery, bad)


@pytest.mark.parametrize(("lost", "snapshot"), [([2], None), ([0], 3), ([1], 3), ([0, 1], 3), ([1, 2], 3)])
def test_a_lost_segment_file_below_the_newest_snapshot_is_damage(
    synced_sim: LoggedModel, lost: list[int], snapshot: int | None
):
    """A lost file is damage wherever it lies below the durable mark, also without any snapshot."""
    model = synced_sim
    if snapshot is not None:
        model.snapshot(snapshot * SEGMENT_BYTES)
    model.log.close()
    for number in lost:
        model.disk.unlink(segment_path(number * SEGMENT_BYTES))
    begin, end = lost[0] * SEGMENT_BYTES, (lost[-1] + 1) * SEGMENT_BYTES
    bad = [meta for meta, _ in model.entries if begin <= meta.position < end]
    recovery = model.open()
    assert recovery.corrupt_ranges == [(begin, end, bad[0].index, bad[-1].index + 1)]
    check_around(model, recovery, bad)


def test_damage_that_may_hide_a_membership_entry_is_reported_as_unread(sim_disk: SimDisk):
    model = synced_log(sim_disk, 10)
    model.append(kind=EntryKind.MEMBERSHIP)
    model.fill(random.Random(2), 10)
    model.sync()
    model.log.close()
    damage(model, 5, 50)
    assert model.open().unread == [], "the index says that it is none"
    model.log.close()
    damage(model, 10, 50)
    recovery = model.open()
    assert (recovery.memberships, recovery.unread) == ([], [(10, 11)])
    model.log.close()
    model.lose_index()
    assert model.open().unread == [(5, 6), (10, 11)], "nothing says what they are"


def test_a_damaged_blank_is_damage_of_no_entry(closed: LoggedModel):
    metas = [meta for meta, _ in closed.entries]
    last = next(meta for meta, after in pairwise(metas) if meta.end < after.position)
    end = (last.position // SEGMENT_BYTES + 1) * SEGMENT_BYTES
    closed.flip(end - 1)
    recovery = closed.open()
    assert recovery.corrupt_ranges == [(last.end, end, last.index + 1, last.index + 1)]
    check_around(closed, recovery, [])


def test_a_lost_index_is_rebuilt(closed: LoggedModel):
    def content() -> list[bytes]:
        files = [closed.disk.open(f"index/{name}") for name in sorted(closed.disk.listdir("index"))]
        return [file.pread(file.size(), 0).rstrip(b"\0") for file in files]

    before = content()
    closed.lose_index()
    closed.open()
    assert content() == before
    closed.check()


@pytest.mark.parametrize("kept_bytes", [0, 10, 70])
def test_a_torn_index_is_rebuilt_in_trusted_segments_too(synced_sim: LoggedModel, kept_bytes: int):
    model = synced_sim
    model.snapshot(4 * SEGMENT_BYTES)
    model.log.close()
    for name in model.disk.listdir("index"):
        model.disk.open(f"index/{name}").truncate(kept_bytes)
    recovery = model.open()
    assert recovery.base is not None
    assert recovery.first_index == 0
    model.check()


def test_verification_starts_at_the_newest_snapshot_below_the_mark(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    for term in range(1, 8):
        model.fill(random.Random(term), 10, term)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    base = model.snapshot(5 * SEGMENT_BYTES)
    model.log.close()
    runs = model.log._terms.runs
    damage(model, 0, 50)
    recovery = model.open()
    assert recovery.base == base
    assert recovery.corrupt_ranges == [], "what lies below is left to the scrubber"
    assert recovery.term_runs == runs == [(10 * at, at + 1) for at in range(7)]
    assert recovery.first_index == 0


def test_a_snapshot_that_does_not_verify_or_lies_above_the_mark_is_no_base(synced_sim: LoggedModel):
    model = synced_sim
    older, newer = model.snapshot(SEGMENT_BYTES), model.snapshot(3 * SEGMENT_BYTES)
    model.receive(SnapshotMeta(90 * SEGMENT_BYTES, 9999, 1, 5, MEMBERS))
    assert model.reopen().base == newer
    model.log.close()
    path = f"snapshots/{newer.position:020d}"
    model.sim.flip_bit(path, 8 * (model.disk.open(path).size() - 26))
    recovery = model.open()
    assert recovery.base == older
    assert any("snapshots/" in note for note in recovery.notes)
    model.check()


def test_a_lost_mark_is_reported_unless_the_directory_is_new(closed: LoggedModel):
    assert LoggedModel(SimDisk()).recovery.mark_valid
    for bit in (8 * 20, 8 * (4096 + 20)):
        closed.sim.flip_bit("raft/mark", bit)
    recovery = closed.open()
    assert not recovery.mark_valid
    assert recovery.last_index == 59
    closed.check()
    closed.log.close()
    closed.disk.unlink("raft/mark")
    assert not closed.open().mark_valid


def test_a_log_that_is_refused_leaves_no_file_open(tmp_path: Path):
    """A log that contradicts its mark is refused. Its directory is set aside, and its space is free once deleted."""
    disk = OsDisk(str(tmp_path))
    model = synced_log(disk)
    model.log.close()
    mark, value = DurableMark.open(disk)
    assert value is not None
    mark.lower_and_sync(MarkValue(value.position, value.index, value.term, value.chain ^ 1))
    mark.close()
    with pytest.raises(CorruptionError, match="mark"):
        model.open()
    assert [path for path in map(os.readlink, open_files()) if path.startswith(str(tmp_path))] == []


def open_files() -> list[str]:
    return [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]


@pytest.mark.parametrize("later", [[], [5 * SEGMENT_BYTES]])
def test_leftovers_of_an_interrupted_trim_are_not_part_of_the_log(synced_sim: LoggedModel, later: list[int]):
    model = synced_sim
    for position in (4 * SEGMENT_BYTES, *later):
        model.snapshot(position)
    model.log.close()
    for start in range(0, 4 * SEGMENT_BYTES, SEGMENT_BYTES):
        model.disk.unlink(f"index/{start:020d}")
    for start in (0, SEGMENT_BYTES):
        model.disk.unlink(f"commitlog/{start:020d}")
    recovery = model.open()
    assert recovery.first_position == 4 * SEGMENT_BYTES
    model.check(first_index=recovery.first_index)
    model.trim_to(5 * SEGMENT_BYTES)
    names = [name for name in model.disk.listdir("commitlog") if name != "spare"]
    assert min(names) == f"{5 * SEGMENT_BYTES:020d}"


@pytest.mark.parametrize("fault", ["rotten", "missing"])
def test_a_lost_first_snapshot_costs_no_entry_if_a_later_one_has_the_state(synced_sim: LoggedModel, fault: str):
    model = synced_sim
    first = model.snapshot(2 * SEGMENT_BYTES)
    model.trim(first.position)
    base = model.snapshot(4 * SEGMENT_BYTES)
    model.log.close()
    path = f"snapshots/{first.position:020d}"
    model.sim.flip_bit(path, 8 * 30) if fault == "rotten" else model.sim.unlink(path)
    recovery = model.open()
    assert recovery.base == base
    assert (recovery.first_position, recovery.first_index) == (first.position, first.last_index + 1)
    assert list(model.snapshots.rotten) == [first.position]
    model.check(first_index=recovery.first_index)
    assert model.log.continues(first)
    assert not model.log.continues(msgspec.structs.replace(first, chain_crc=first.chain_crc ^ 1))


def test_a_log_with_a_mark_older_than_its_trim_begins_at_its_snapshot(sim_disk: SimDisk):
    """The mark is synced, then synced again, and the log is trimmed beyond the first mark. The newer copy rots."""
    model = synced_log(sim_disk, 5)
    model.log.sync_mark()
    older = DurableMark.read(sim_disk)
    assert older is not None
    model.fill(random.Random(2), 60)
    model.sync()
    model.trim_to(4 * SEGMENT_BYTES)
    sim_disk.kill()
    slots = SlotFile.open(sim_disk, "raft/mark")
    assert slots is not None
    newest = max(slots.read(), key=lambda slot: slot.sequence)
    sim_disk.flip_bit("raft/mark", 8 * (SLOT_SPACING_BYTES * newest.number + 25))
    assert DurableMark.read(sim_disk) == older
    assert older.position < 4 * SEGMENT_BYTES
    recovery = model.open()
    assert recovery.base is not None
    assert (recovery.base.position, recovery.first_position) == (4 * SEGMENT_BYTES, 4 * SEGMENT_BYTES)
    assert recovery.last_index == 64
    model.check(first_index=recovery.first_index)


def test_recovery_distinguishes_a_crash_from_an_orderly_stop(closed: LoggedModel):
    assert closed.open().clean
    closed.append()
    closed.sync()
    assert not closed.kill().clean


@pytest.mark.parametrize("ahead", [-3, 0, 3])
def test_a_received_snapshot_that_did_not_replace_the_log_is_not_its_base(synced_sim: LoggedModel, ahead: int):
    """A crash hits between receiving a leader's snapshot and the reset of the log.

    The log's uncommitted entries reach beyond the snapshot. As the log's base this snapshot would turn them into
    corrupt entries of the leader's term. The replica would acknowledge them.
    """
    model = synced_sim
    model.log.sync_mark()
    position = 2 * SEGMENT_BYTES
    before = max(meta.index for meta, _ in model.entries if meta.position < position)
    model.receive(SnapshotMeta(position, before + ahead, 5, 12345, MEMBERS))
    recovery = model.crash(keep="none")
    assert (recovery.base, recovery.corrupt_ranges, recovery.term_runs) == (None, [], [(0, 1)])
    model.check()
    model.truncate(20)
    model.append(b"of the leader", term=6)
    model.check()


def test_a_received_snapshot_at_the_end_of_the_log_is_not_its_base(sim_disk: SimDisk):
    model = synced_log(sim_disk, 10)
    model.append(body_leaving(model.log, 0))
    model.sync()
    model.log.sync_mark()
    model.receive(SnapshotMeta(model.log.end_position, 5, 5, 12345, MEMBERS))
    assert model.crash(keep="none").base is None
    model.check()
