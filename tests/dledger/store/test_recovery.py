import random

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, body_leaving, make_identity

from dledger.errors import CorruptionError
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.recovered import Recovery
from dledger.store.slots import SLOT_SPACING_BYTES, Slot, SlotFile
from dledger.testing.disk import SimDisk
from dledger.types import EntryKind, EntryMeta, SnapshotMeta


def segment_of(meta: EntryMeta) -> str:
    return f"commitlog/{meta.position // SEGMENT_BYTES * SEGMENT_BYTES:020d}"


def damage(model: LoggedModel, index: int, offset: int) -> EntryMeta:
    """Flip a bit of an entry that is durable."""
    meta = model.entries[index][0]
    disk = model.disk
    assert isinstance(disk, SimDisk)
    disk.flip_bit(segment_of(meta), 8 * (meta.position % SEGMENT_BYTES + offset))
    return meta


@pytest.fixture
def closed(sim_disk: SimDisk) -> LoggedModel:
    """A log of 60 durable entries over several segments, closed."""
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 60)
    model.sync()
    model.log.close()
    return model


def check_around(model: LoggedModel, recovery: Recovery, bad: list[EntryMeta]) -> None:
    """The corrupt entries are refused, all others served, and the log goes on behind its end."""
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
    first_bad = min(indexes)
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
    disk = closed.disk
    for name in disk.listdir("index"):
        disk.unlink(f"index/{name}")
    meta = damage(closed, 20, 2)
    end = (meta.position // SEGMENT_BYTES + 1) * SEGMENT_BYTES
    bad = [other for other, _ in closed.entries if meta.position <= other.position < end]
    recovery = closed.open()
    assert [bad[:2] for bad in recovery.corrupt_ranges] == [(meta.position, end)]
    check_around(closed, recovery, bad)


def test_a_lost_segment_file_below_the_mark_is_damage(closed: LoggedModel):
    start = 2 * SEGMENT_BYTES
    closed.disk.unlink(f"commitlog/{start:020d}")
    bad = [meta for meta, _ in closed.entries if start <= meta.position < start + SEGMENT_BYTES]
    recovery = closed.open()
    assert [(bad.start, bad.end) for bad in recovery.corrupt_ranges] == [(start, start + SEGMENT_BYTES)]
    check_around(closed, recovery, bad)


@pytest.mark.parametrize("lost", [[0], [1], [0, 1], [1, 2]])
def test_a_lost_segment_file_below_the_newest_snapshot_is_damage(sim_disk: SimDisk, lost: list[int]):
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 60)
    model.sync()
    model.snapshot(3 * SEGMENT_BYTES)
    model.log.close()
    for number in lost:
        sim_disk.unlink(f"commitlog/{number * SEGMENT_BYTES:020d}")
    begin, end = lost[0] * SEGMENT_BYTES, (lost[-1] + 1) * SEGMENT_BYTES
    bad = [meta for meta, _ in model.entries if begin <= meta.position < end]
    recovery = model.open()
    assert recovery.corrupt_ranges == [(begin, end, bad[0].index, bad[-1].index + 1)]
    check_around(model, recovery, bad)


def test_damage_that_may_hide_a_membership_entry_is_told(sim_disk: SimDisk):
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 10)
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
    for name in sim_disk.listdir("index"):
        sim_disk.unlink(f"index/{name}")
    assert model.open().unread == [(5, 6), (10, 11)], "nothing says what they are"


def test_a_damaged_blank_is_damage_of_no_entry(closed: LoggedModel):
    last = next(
        meta
        for (meta, _), (after, _) in zip(closed.entries, closed.entries[1:], strict=False)
        if meta.end < after.position
    )
    disk = closed.disk
    assert isinstance(disk, SimDisk)
    end = (last.position // SEGMENT_BYTES + 1) * SEGMENT_BYTES
    disk.flip_bit(segment_of(last), 8 * (SEGMENT_BYTES - 1))
    recovery = closed.open()
    assert recovery.corrupt_ranges == [(last.end, end, last.index + 1, last.index + 1)]
    for meta, data in closed.entries:
        assert closed.log.meta(meta.index) == meta
        assert closed.log.read(meta.position, meta.size) == data


def test_damage_above_the_mark_ends_the_log(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 10)
    model.sync()
    model.fill(random.Random(1), 10)
    sim_disk.kill()
    damage(model, 15, 48)
    recovery = model.open()
    assert (recovery.last_index, recovery.corrupt_ranges) == (14, [])
    model.forget_from(15)
    model.check()


def test_a_lost_index_is_rebuilt(closed: LoggedModel):
    names = sorted(closed.disk.listdir("index"))
    before = [read_all(closed.disk, f"index/{name}").rstrip(b"\0") for name in names]
    for name in names:
        closed.disk.unlink(f"index/{name}")
    closed.open()
    assert [read_all(closed.disk, f"index/{name}").rstrip(b"\0") for name in names] == before
    closed.check()


@pytest.mark.parametrize("kept_bytes", [0, 10, 70])
def test_a_torn_index_is_rebuilt_in_trusted_segments_too(sim_disk: SimDisk, kept_bytes: int):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 60)
    model.sync()
    model.snapshot(4 * SEGMENT_BYTES)
    model.log.close()
    for name in sim_disk.listdir("index"):
        sim_disk.open(f"index/{name}").truncate(kept_bytes)
    recovery = model.open()
    assert recovery.base is not None
    assert recovery.first_index == 0
    model.check()


def read_all(disk: object, path: str) -> bytes:
    assert isinstance(disk, SimDisk)
    file = disk.open(path)
    return file.pread(file.size(), 0)


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


def test_a_snapshot_that_does_not_verify_is_no_base(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 60)
    model.sync()
    older = model.snapshot(SEGMENT_BYTES)
    newer = model.snapshot(3 * SEGMENT_BYTES)
    model.log.close()
    file = sim_disk.open(f"snapshots/{newer.position:020d}")
    sim_disk.flip_bit(f"snapshots/{newer.position:020d}", 8 * (file.size() - 26))
    recovery = model.open()
    assert recovery.base == older
    assert any("snapshots/" in note for note in recovery.notes)
    model.check()


def test_a_snapshot_above_the_mark_is_no_base(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 20)
    model.sync()
    model.log.close()
    writer = model.snapshots.begin(SnapshotMeta(90 * SEGMENT_BYTES, 9999, 1, 5, MEMBERS))
    writer.commit()
    assert model.open().base is None
    model.check()


def test_a_lost_mark_is_said(closed: LoggedModel):
    disk = closed.disk
    assert isinstance(disk, SimDisk)
    for bit in (8 * 20, 8 * (4096 + 20)):
        disk.flip_bit("raft/mark", bit)
    recovery = closed.open()
    assert not recovery.mark_valid
    assert recovery.last_index == 59
    closed.check()


def test_a_missing_mark_is_said_unless_the_directory_is_new(closed: LoggedModel, sim_disk: SimDisk):
    assert LoggedModel(SimDisk()).recovery.mark_valid
    sim_disk.unlink("raft/mark")
    assert not closed.open().mark_valid


def test_a_log_that_contradicts_its_mark_is_refused(closed: LoggedModel):
    mark, value = DurableMark.open(closed.disk)
    assert value is not None
    mark.lower_and_sync(MarkValue(value.position, value.index, value.term, value.chain ^ 1))
    with pytest.raises(CorruptionError, match="mark"):
        closed.open()


def test_what_an_interrupted_trim_left_is_no_part_of_the_log(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 60)
    model.sync()
    model.snapshot(4 * SEGMENT_BYTES)
    model.log.close()
    for start in (0, SEGMENT_BYTES):
        sim_disk.unlink(f"commitlog/{start:020d}")
        sim_disk.unlink(f"index/{start:020d}")
    recovery = model.open()
    assert recovery.first_position == 4 * SEGMENT_BYTES
    model.check(first_index=recovery.first_index)
    model.snapshot(5 * SEGMENT_BYTES)
    model.trim(5 * SEGMENT_BYTES)
    names = [name for name in sim_disk.listdir("commitlog") if name != "spare"]
    assert min(names) == f"{5 * SEGMENT_BYTES:020d}"


def test_a_log_whose_mark_is_older_than_its_last_trim_begins_at_its_snapshot(sim_disk: SimDisk):
    """1. The mark is synced. 2. It is synced again, and the log trimmed beyond 1. 3. The newer copy rots."""
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 5)
    model.sync()
    model.log.sync_mark()
    older = DurableMark.read(sim_disk)
    assert older is not None
    model.fill(random.Random(2), 60)
    model.sync()
    model.snapshot(4 * SEGMENT_BYTES)
    model.trim(4 * SEGMENT_BYTES)
    sim_disk.kill()
    newest = max(read_slots(sim_disk), key=lambda slot: slot.sequence)
    sim_disk.flip_bit("raft/mark", 8 * (SLOT_SPACING_BYTES * newest.number + 25))
    assert DurableMark.read(sim_disk) == older
    assert older.position < 4 * SEGMENT_BYTES
    recovery = model.open()
    assert recovery.base is not None
    assert (recovery.base.position, recovery.first_position) == (4 * SEGMENT_BYTES, 4 * SEGMENT_BYTES)
    assert recovery.last_index == 64
    model.check(first_index=recovery.first_index)


def read_slots(disk: SimDisk) -> list[Slot]:
    slots = SlotFile.open(disk, "raft/mark")
    assert slots is not None
    return slots.read()


def test_a_crash_is_told_from_an_orderly_stop(closed: LoggedModel):
    disk = closed.disk
    assert isinstance(disk, SimDisk)
    assert closed.open().clean
    closed.append()
    closed.sync()
    disk.kill()
    assert not closed.open().clean


@pytest.mark.parametrize("ahead", [-3, 0, 3])
def test_a_snapshot_that_did_not_come_to_replace_the_log_is_not_taken_for_its_own(sim_disk: SimDisk, ahead: int):
    """1. Entries that no majority has reach beyond a leader's snapshot; 2. it is received; 3. a crash before the reset.

    Taken for the base, the entries behind it would count as corrupt ones of that leader's term, and be acknowledged.
    """
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 60)
    model.sync()
    model.log.sync_mark()
    position = 2 * SEGMENT_BYTES
    before = max(meta.index for meta, _ in model.entries if meta.position < position)
    writer = model.snapshots.begin(SnapshotMeta(position, before + ahead, 5, 12345, MEMBERS))
    writer.write(b"state")
    writer.commit()
    sim_disk.crash(random.Random(1), "none")
    recovery = model.open()
    assert (recovery.base, recovery.corrupt_ranges, recovery.term_runs) == (None, [], [(0, 1)])
    model.check()
    model.truncate(20)
    model.append(b"of the leader", term=6)
    model.check()


def test_a_snapshot_that_did_not_come_to_replace_a_log_of_its_length_is_not_taken_for_its_own(sim_disk: SimDisk):
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 10)
    model.append(body_leaving(model.log, 0))
    model.sync()
    model.log.sync_mark()
    writer = model.snapshots.begin(SnapshotMeta(model.log.end_position, 5, 5, 12345, MEMBERS))
    writer.commit()
    sim_disk.crash(random.Random(1), "none")
    assert model.open().base is None
    model.check()
