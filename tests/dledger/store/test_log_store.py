import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from store_model import (
    MEMBERS,
    SEGMENT_BYTES,
    LoggedModel,
    body_leaving,
    ensure_space,
    failing_after,
    make_entry,
    synced_log,
)

from dledger.errors import CorruptionError, IdentityError, LogFullError, StorageError, TooLargeError, TrimmedError
from dledger.format import BLANK_BYTES, HEADER_BYTES, blank
from dledger.store import space
from dledger.store.disk import Disk, OsDisk
from dledger.store.index import UNIT_BYTES
from dledger.store.log import LogStore
from dledger.store.reset import prepare_reset
from dledger.store.segments import Segment, SegmentTable, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk, SimFile
from dledger.types import EntryKind, SnapshotMeta
from dledger_base.invariants import InvariantError

BASE = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
"""Snapshot of a log that is far ahead."""


def test_the_bytes_of_an_entry_are_those_of_the_format(tmp_path: Path):
    model = LoggedModel(OsDisk(str(tmp_path)))
    model.append(b"hello", term=7)
    model.append(b"world", term=7)
    model.sync()
    raw = (tmp_path / "commitlog" / "00000000000000000000").read_bytes()[:106]
    assert raw.hex() == (
        "00000001" "00000035" "0000000000000000" "0000000000000007" "0000000000000000" "00000000"
        "9e6a8471" "3610a686" "00000005" "68656c6c6f"
        "00000001" "00000035" "0000000000000001" "0000000000000007" "0000000000000035" "00000000"
        "45756601" "3a771143" "00000005" "776f726c64"
    )  # fmt: skip
    model.log.begin_sync(whole_index=True).run()
    index = (tmp_path / "index" / "00000000000000000000").read_bytes()
    assert index[: 2 * UNIT_BYTES].hex() == (
        "00000001" "0000000000000000" "00000035" "0000000000000000" "0000000000000007"
        "00000001" "0000000000000035" "00000035" "0000000000000001" "0000000000000007"
    )  # fmt: skip


def test_appended_entries_are_readable_and_survive_a_restart(model: LoggedModel):
    model.fill(random.Random(1), 60)
    model.append(kind=EntryKind.MEMBERSHIP, term=2)
    model.fill(random.Random(2), 5, term=3)
    model.check()
    model.sync()
    recovery = model.reopen()
    assert recovery.clean
    assert recovery.term_runs == [(0, 1), (60, 2), (61, 3)]
    assert [meta.index for meta in recovery.memberships] == [60]
    assert recovery.durable_index == recovery.last_index == 65
    model.check()


def test_an_entry_that_does_not_fit_starts_the_next_segment_behind_a_blank(model: LoggedModel):
    model.append(body_leaving(model.log, 100))
    assert model.log.next_position(HEADER_BYTES + 44) == SEGMENT_BYTES - 100
    assert model.log.next_position(HEADER_BYTES + 45) == SEGMENT_BYTES
    assert model.log.next_position(100) == SEGMENT_BYTES - 100
    meta = model.append(bytes(45))
    assert meta.position == SEGMENT_BYTES
    assert model.log.read(SEGMENT_BYTES - 100, 100) == blank(100)
    model.check()


def test_a_run_of_entries_may_reach_into_the_next_segment(model: LoggedModel):
    model.append(body_leaving(model.log, 200))
    entries = []
    chain, position = model.log.last_chain, model.log.end_position
    for index, body in enumerate((b"a" * 20, b"b" * 30, b"c" * 40, b"d"), start=1):
        if position < SEGMENT_BYTES < position + HEADER_BYTES + len(body) + BLANK_BYTES:
            position = SEGMENT_BYTES
        entries.append(make_entry(index, 1, position, chain, body))
        chain, position = entries[-1][0].chain_crc, entries[-1][0].end
    assert entries[2][0].position == SEGMENT_BYTES
    model.put(*entries)
    model.check()


def test_an_entry_larger_than_a_segment_is_refused_and_a_gap_is_a_programming_error(model: LoggedModel):
    with pytest.raises(TooLargeError, match="5000"):
        model.log.next_position(5000)
    model.append()
    meta, data = make_entry(5, 1, model.log.end_position, model.log.last_chain, b"x")
    with pytest.raises(InvariantError, match="in order"):
        model.write([meta], data)


def test_the_durable_index_covers_exactly_a_finished_sync(model: LoggedModel):
    model.append()
    ticket = model.begin_sync()
    assert ticket.token == (0, 0)
    model.append()
    ticket.run()
    assert model.log.durable == -1
    model.log.finish_sync(ticket)
    assert (model.log.durable, model.log.durable_position) == (0, model.entries[0][0].end)
    model.sync()
    assert model.log.durable == 1
    assert model.log.begin_sync() is None


def test_a_sync_that_began_before_a_truncation_makes_no_entry_durable(model: LoggedModel):
    model.fill(random.Random(1), 10)
    ticket = model.begin_sync()
    model.truncate(5)
    model.append(b"other", term=2)
    ticket.run()
    model.log.finish_sync(ticket)
    assert model.log.generation == 1
    assert model.log.durable == -1
    model.sync()
    assert model.log.durable == 5
    assert model.reopen(clean=False).last_index == 5
    model.check()


def test_truncation_reaches_back_over_segments_and_leaves_an_empty_log_at_last(synced: LoggedModel):
    assert len(synced.log.segments()) > 4
    synced.truncate(3)
    assert len(synced.log.segments()) == 1
    assert synced.log.durable == 2
    synced.fill(random.Random(4), 30, term=2)
    synced.check()
    synced.sync()
    assert synced.reopen(clean=False).term_runs == [(0, 1), (3, 2)]
    synced.check()
    synced.truncate(0)
    synced.check()
    synced.fill(random.Random(4), 20, term=2)
    synced.check()
    generation = synced.log.generation
    synced.truncate(20)
    assert synced.log.generation == generation + 1, "a truncation behind the end only counts"
    synced.check()


def test_a_read_across_a_segment_end_is_refused(synced: LoggedModel):
    """A read that crosses a segment's end is refused as corrupt: only a rotten file names such a place."""
    for read in (synced.log.read, synced.log.read_nowait):
        with pytest.raises(CorruptionError, match="do not lie in one segment"):
            read(SEGMENT_BYTES - 10, 20)


def test_trimming_drops_whole_segments_their_index_and_older_snapshots(synced: LoggedModel):
    model, position = synced, 3 * SEGMENT_BYTES
    model.trim(position)
    assert model.log.first_position == 0, "nothing is trimmed above the newest snapshot"
    model.snapshot(SEGMENT_BYTES)
    model.trim(position)
    assert model.log.first_position == SEGMENT_BYTES
    model.snapshot(position)
    model.trim(position + 10)
    assert model.log.first_position == position
    assert [meta.position for meta in model.snapshots.list()] == [position]
    assert min(model.disk.listdir("commitlog")) == min(model.disk.listdir("index")) == f"{position:020d}"
    with pytest.raises(TrimmedError, match=str(position)):
        model.log.read(0, 10)
    for look in (model.log.meta, model.log.term_at):
        with pytest.raises(TrimmedError):
            look(0)
    model.check(first_index=model.log.first_index)
    recovery = model.reopen()
    assert recovery.first_position == position
    assert recovery.base is not None
    model.check(first_index=model.log.first_index)


def test_a_pinned_segment_stays_readable_when_it_is_trimmed(synced: LoggedModel):
    with synced.log.pin(0) as pin:
        first = synced.entries[0]
        synced.trim_to(2 * SEGMENT_BYTES)
        while synced.log.prepare_ahead(1 << 20):
            pass
        synced.fill(random.Random(7), 60)
        assert pin.read(first[0].position, first[0].size) == first[1]
        pin.release()
    assert not synced.disk.exists(f"commitlog/{0:020d}")
    synced.check(first_index=synced.log.first_index)


def test_trimmed_segment_files_are_reused_for_next_segments(synced: LoggedModel):
    synced.trim_to(3 * SEGMENT_BYTES)
    following = max(synced.disk.listdir("commitlog"))
    assert int(following) > synced.log.end_position
    assert synced.disk.open(f"commitlog/{following}").size() == SEGMENT_BYTES
    synced.fill(random.Random(8), 40, term=2)
    synced.sync()
    synced.check(first_index=synced.log.first_index)
    synced.reopen(clean=False)
    synced.check(first_index=synced.log.first_index)


def about_to_be_reset(disk: Disk | None = None) -> LoggedModel:
    """Return a log behind which a snapshot was received that is far ahead."""
    model = synced_log(disk)
    model.receive(BASE)
    return model


def test_a_reset_leaves_an_empty_log_behind_the_snapshot(disk: Disk):
    model = about_to_be_reset(disk)
    model.reset(BASE)
    assert (model.log.first_index, model.log.last_index, model.log.durable) == (1000, 999, 999)
    assert (model.log.end_position, model.log.last_chain, model.log.last_term) == (BASE.position, 1234, 9)
    assert model.snapshots.list() == [BASE]
    model.entries = []
    model.fill(random.Random(7), 20, term=10)
    model.sync()
    model.check()
    recovery = model.reopen(clean=False)
    assert (recovery.base, recovery.first_index, recovery.last_index) == (BASE, 1000, 1019)
    model.check()


def test_a_reset_closes_no_file_in_which_a_thread_reserves_space(monkeypatch: pytest.MonkeyPatch):
    """Another thread prepares space. The reset closes the files after that thread has finished."""
    monkeypatch.setattr(space, "RESERVE_STEP_BYTES", 256)
    model = synced_log(count=1)
    model.receive(BASE)
    reserving, closing = threading.Event(), threading.Event()
    reserve, close = SimFile.reserve, space.Space.close

    def reserve_slowly(self: SimFile, offset: int, size: int) -> None:
        reserving.set()
        assert closing.wait(30)
        reserve(self, offset, size)

    def close_space(self: space.Space) -> None:
        closing.set()
        close(self)

    monkeypatch.setattr(SimFile, "reserve", reserve_slowly)
    monkeypatch.setattr(space.Space, "close", close_space)
    with ThreadPoolExecutor(1) as worker:
        prepared = worker.submit(model.log.prepare_ahead, 1 << 20)
        assert reserving.wait(30)
        model.reset(BASE)
        assert not prepared.result()
    assert model.log.end_position == BASE.position


def test_an_interrupted_reset_is_carried_out_at_the_next_start():
    for fatal_step in range(60):
        model = about_to_be_reset()
        with suppress(StorageError), failing_after(model.sim, fatal_step):
            model.reset(BASE)
            assert fatal_step > 10
            return
        recovery = model.crash(fatal_step)
        if recovery.last_index == 999:
            assert model.snapshots.list() == [BASE]
        else:
            model.check()
            assert recovery.durable_index == 59
    pytest.fail("the reset never came through")


def test_a_start_syncs_a_reset_intent_before_it_removes_segments(sim_disk: SimDisk):
    """The process may have been killed before it synced the intent.

    If the files went first, a power loss could remove both.
    """
    model = about_to_be_reset(sim_disk)
    prepare_reset(sim_disk, BASE)
    sim_disk.rename("raft/reset.tmp", "raft/reset")
    sim_disk.kill()
    assert sim_disk.durable_size("raft/reset") == 0
    durable_at_unlink: list[bool] = []
    sim_disk.entered = lambda operation, path: (
        durable_at_unlink.append(sim_disk.durable_size("raft/reset") > 0)
        if operation == "unlink" and path.startswith("commitlog/")
        else None
    )
    assert model.open().last_index == 999
    assert len(durable_at_unlink) > 3
    assert all(durable_at_unlink[:-1]), "the last one is of the new log"


def test_a_prepared_reset_needs_no_disk_space(sim_disk: SimDisk):
    model = about_to_be_reset(sim_disk)
    other = SnapshotMeta(40 * SEGMENT_BYTES, 799, 9, 1234, MEMBERS)
    for prepared in (other, BASE):  # the newest counts
        model.log.files.prepare_reset(prepared)
    sim_disk.fill_up()
    with pytest.raises(LogFullError, match="no space to reset the log"):
        model.log.files.prepare_reset(other)
    sim_disk.make_room()
    model.log.files.prepare_reset(BASE)
    sim_disk.fill_up()
    model.reset(BASE)
    assert (model.log.first_index, model.log.end_position) == (1000, BASE.position)
    assert model.crash().base == BASE


def test_a_prepared_reset_creates_no_directory():
    """A new directory needs a block of its own, and other users may have taken the freed block."""

    class DiskWhoseDirectoriesTakeABlock(SimDisk):
        def mkdir(self, path: str) -> None:
            if self.is_full and not self.exists(path):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            super().mkdir(path)

    model = about_to_be_reset(DiskWhoseDirectoriesTakeABlock(random.Random(1)))
    model.log.files.prepare_reset(BASE)
    model.sim.fill_up()
    model.reset(BASE)
    assert model.kill().base == BASE


def test_a_read_during_a_log_reset_finds_the_log_trimmed():
    """Other threads can see the segment table between the removal of the old segments and the new segment."""
    table = SegmentTable(SEGMENT_BYTES, [Segment(SimDisk(), 0, 0)])
    table.clear()
    with pytest.raises(TrimmedError, match="position 5"):
        table.containing(5)
    with pytest.raises(TrimmedError, match="index 7"):
        table.of_index(7)


def full_model() -> LoggedModel:
    """Return a log on a disk that has no space for anything else."""
    model = LoggedModel(SimDisk(random.Random(1)), segment_bytes=1 << 20, reserve_bytes=1 << 16)
    model.sim.capacity_bytes = model.sim.allocated_bytes
    return model


def fill_up(model: LoggedModel, *, privileged: bool = False) -> None:
    for _ in range(2000):
        model.append(bytes(2000), privileged=privileged)


def test_a_full_disk_is_met_before_anything_is_written_and_keeps_a_reserve():
    model = full_model()
    with pytest.raises(LogFullError):
        fill_up(model)
    ensure_space(model.log, 5000, privileged=True)
    model.check()
    model.sync()
    assert model.log.durable == model.log.last_index
    model.append(bytes(12), 2, EntryKind.NO_OP, privileged=True)
    with pytest.raises(LogFullError):
        ensure_space(model.log, 5000)
    model.sim.capacity_bytes += 10 << 20
    model.fill(random.Random(1), 50, term=2)
    model.check()


def test_privileged_entries_are_refused_beyond_the_reserve():
    model = full_model()
    with pytest.raises(LogFullError):
        fill_up(model, privileged=True)
    log = model.log
    before = log.last_index, log.end_position
    meta, data = model.next_entry(bytes(49_952))
    for append in (model.write, log.append):
        with pytest.raises(LogFullError):
            append([meta], data)
    assert (log.last_index, log.end_position) == before


def test_space_is_reserved_over_the_end_of_a_segment(sim_disk: SimDisk):
    model = LoggedModel(sim_disk, segment_bytes=1 << 16, reserve_bytes=1 << 14)
    sim_disk.capacity_bytes = sim_disk.allocated_bytes
    body = body_leaving(model.log, 100)
    with pytest.raises(LogFullError):
        model.append(body)
    model.append(body, privileged=True)
    ensure_space(model.log, 60, privileged=True)
    with pytest.raises(LogFullError):
        ensure_space(model.log, 200, privileged=True)
    sim_disk.capacity_bytes += 1 << 20
    model.fill(random.Random(1), 10)
    model.check()


def test_an_append_beyond_the_reserved_space_is_refused(sim_disk: SimDisk):
    model = LoggedModel(sim_disk, segment_bytes=1 << 16, reserve_bytes=1 << 14)
    assert [model.log.reach_from(at) for at in (0, 1, 1 << 16, (1 << 16) + 1)] == [2 << 16, 2 << 16, 2 << 16, 3 << 16]
    metas, data, chain = [], b"", 0
    for index in range(3):
        meta, entry = make_entry(index, 1, index << 16, chain, bytes(60_000))
        metas, data, chain = [*metas, meta], data + entry, meta.chain_crc
    model.log.reserve(model.log.need_for(metas))
    with pytest.raises(LogFullError):
        model.log.append(metas, data)
    model.write(metas[:2], data[: sum(meta.size for meta in metas[:2])])
    model.write(metas[2:], data[sum(meta.size for meta in metas[:2]) :])
    assert model.log.end_position == metas[-1].end


def append_and_sync(model: LoggedModel) -> None:
    model.append()
    model.sync()


@pytest.mark.parametrize("operation", ["pwrite", "datasync"])
def test_a_failed_write_or_sync_is_fatal(operation: str, sim_disk: SimDisk):
    model = synced_log(sim_disk, 1)
    sim_disk.fail(lambda name, path: name == operation and path.startswith("commitlog"))
    with pytest.raises(StorageError, match="Input/output"):
        append_and_sync(model)
    with pytest.raises(StorageError):
        model.log.begin_sync()
    model.check_reopened(model.crash())


def test_the_recent_window_forgets_only_durable_entries(disk: Disk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dledger.store.window.RECENT_ENTRIES", 20)
    monkeypatch.setattr("dledger.store.window.SLACK_ENTRIES", 5)
    model = LoggedModel(disk)
    model.fill(random.Random(1), 100, largest=100)
    assert model.log._recent.get(0) is not None
    model.sync()
    model.append(kind=EntryKind.MEMBERSHIP)
    assert model.log._recent.get(70) is None
    assert model.log._recent.get(85) is not None
    model.check()
    model.fill(random.Random(2), 60, largest=100)
    model.check()
    model.truncate(30)
    model.fill(random.Random(3), 10, term=2)
    model.check()


def test_segments_tell_their_range_and_age(model: LoggedModel):
    model.fill(random.Random(1), 30)
    segments = model.log.segments()
    assert [segment.start_position for segment in segments] == [at * SEGMENT_BYTES for at in range(len(segments))]
    assert segments[0].end_position == SEGMENT_BYTES
    assert segments[-1].end_position == model.log.end_position
    written = model.disk.stat(segment_path(SEGMENT_BYTES)).mtime_ms
    assert model.log.segment_written_ms(SEGMENT_BYTES) == written
    with pytest.raises(TrimmedError, match=str(7_000 * SEGMENT_BYTES)):
        model.log.segment_written_ms(7_000 * SEGMENT_BYTES)
    assert 0 <= model.log.disk_space().used_ratio <= 1


def test_index_units_are_written_at_latest_by_the_sync(tmp_path: Path):
    model = synced_log(OsDisk(str(tmp_path)), 30)
    raw = b"".join(path.read_bytes().rstrip(b"\0") for path in sorted((tmp_path / "index").iterdir()))
    units = [meta.index for meta, _ in model.entries]
    assert [index for index in units if index.to_bytes(8, "big") + (1).to_bytes(8, "big") in raw] == units


def test_another_segment_size_is_refused(synced: LoggedModel):
    synced.log.close()
    with pytest.raises(IdentityError, match="segment_bytes"):
        LogStore.open(synced.disk, segment_bytes=3 * SEGMENT_BYTES, snapshots=SnapshotStore.open(synced.disk))


def test_the_commit_index_is_remembered(model: LoggedModel):
    model.fill(random.Random(1), 5)
    assert model.log.saved_commit == -1
    for index in range(4):
        model.log.save_commit(index)
    model.sync()
    assert model.reopen().saved_commit == 3


def test_behind_a_snapshot_the_log_goes_on_at_its_position(model: LoggedModel):
    model.append(body_leaving(model.log, 200))
    model.append(bytes(300))
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.log.trim(SEGMENT_BYTES)
    model.truncate(1)
    assert model.log.end_position == SEGMENT_BYTES
    assert model.append(b"small", term=2).position == SEGMENT_BYTES
    model.sync()
    model.reopen(clean=False)
    model.check(first_index=1)
