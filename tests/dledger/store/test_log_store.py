import errno
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from store_model import (
    MEMBERS,
    SEGMENT_BYTES,
    LoggedModel,
    body_leaving,
    ensure_space,
    left_in_segment,
    make_entry,
)

from dledger.errors import CorruptionError, IdentityError, LogFullError, StorageError, TooLargeError, TrimmedError
from dledger.format import BLANK_BYTES, HEADER_BYTES, blank
from dledger.invariants import InvariantError
from dledger.store import space
from dledger.store.disk import Disk, OsDisk
from dledger.store.index import UNIT_BYTES
from dledger.store.log import LogStore
from dledger.store.reset import prepare_reset
from dledger.store.segments import Segment, SegmentTable, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.testing.disk import SimDisk, SimFile
from dledger.types import EntryKind, SnapshotMeta


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
    units = model.log.begin_sync(whole_index=True)
    assert units is not None
    units.run()
    index = (tmp_path / "index" / "00000000000000000000").read_bytes()
    assert index[: 2 * UNIT_BYTES].hex() == (
        "00000001" "0000000000000000" "00000035" "0000000000000000" "0000000000000007"
        "00000001" "0000000000000035" "00000035" "0000000000000001" "0000000000000007"
    )  # fmt: skip


def test_what_was_appended_is_there_and_survives_a_restart(model: LoggedModel):
    model.fill(random.Random(1), 60)
    model.append(kind=EntryKind.MEMBERSHIP, term=2)
    model.fill(random.Random(2), 5, term=3)
    model.check()
    model.sync()
    model.log.close()
    recovery = model.open()
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


@pytest.mark.parametrize("left", [0, BLANK_BYTES, BLANK_BYTES + 1])
def test_a_segment_may_end_in_an_entry_or_in_the_smallest_blanks(model: LoggedModel, left: int):
    model.append(body_leaving(model.log, left))
    assert model.append(b"next").position == SEGMENT_BYTES
    model.sync()
    model.log.close(clean=False)
    model.open()
    model.check()


def test_a_run_of_entries_may_reach_into_the_next_segment(model: LoggedModel):
    model.append(body_leaving(model.log, 200))
    metas, pieces = [], []
    chain, position = model.log.last_chain, model.log.end_position
    for index, body in enumerate((b"a" * 20, b"b" * 30, b"c" * 40, b"d"), start=1):
        size = HEADER_BYTES + len(body)
        if position < SEGMENT_BYTES < position + size + BLANK_BYTES:
            position = SEGMENT_BYTES
        meta, data = make_entry(index, 1, position, chain, body)
        metas.append(meta)
        pieces.append(data)
        chain, position = meta.chain_crc, meta.end
    assert metas[2].position == SEGMENT_BYTES
    model.write(metas, pieces)
    model.entries.extend(zip(metas, pieces, strict=True))
    model.check()


def test_an_entry_larger_than_a_segment_is_refused(model: LoggedModel):
    with pytest.raises(TooLargeError, match="5000"):
        model.log.next_position(5000)


def test_a_gap_is_a_programming_error(model: LoggedModel):
    model.append()
    meta, data = make_entry(5, 1, model.log.end_position, model.log.last_chain, b"x")
    with pytest.raises(InvariantError, match="in order"):
        model.write([meta], data)


def test_durable_is_what_a_finished_sync_covered(model: LoggedModel):
    model.append()
    ticket = model.log.begin_sync()
    assert ticket is not None
    assert ticket.token == (0, 0)
    model.append()
    ticket.run()
    assert model.log.durable == -1
    model.log.finish_sync(ticket)
    assert (model.log.durable, model.log.durable_position) == (0, model.entries[0][0].end)
    model.sync()
    assert model.log.durable == 1
    assert model.log.begin_sync() is None


def test_a_sync_that_began_before_a_truncation_vouches_for_nothing(model: LoggedModel):
    model.fill(random.Random(1), 10)
    ticket = model.log.begin_sync()
    assert ticket is not None
    model.truncate(5)
    model.append(b"other", term=2)
    ticket.run()
    model.log.finish_sync(ticket)
    assert model.log.generation == 1
    assert model.log.durable == -1
    model.sync()
    assert model.log.durable == 5
    model.log.close(clean=False)
    assert model.open().last_index == 5
    model.check()


def test_truncation_reaches_back_over_segments(model: LoggedModel):
    model.fill(random.Random(3), 60)
    model.sync()
    assert len(model.log.segments()) > 4
    model.truncate(3)
    assert len(model.log.segments()) == 1
    assert model.log.durable == 2
    model.fill(random.Random(4), 30, term=2)
    model.check()
    model.sync()
    model.log.close(clean=False)
    assert model.open().term_runs == [(0, 1), (3, 2)]
    model.check()


def test_truncating_all_leaves_an_empty_log(model: LoggedModel):
    model.fill(random.Random(3), 20)
    model.truncate(0)
    model.check()
    model.fill(random.Random(4), 20, term=2)
    model.check()


def test_truncation_behind_the_end_only_counts(model: LoggedModel):
    model.fill(random.Random(3), 3)
    model.log.take_cut(model.log.cut(3))
    assert model.log.generation == 1
    model.check()


def test_after_a_truncation_a_smaller_entry_may_take_the_place_of_the_blank(model: LoggedModel):
    model.append(body_leaving(model.log, 200))
    model.append(bytes(300))
    model.sync()
    model.truncate(1)
    assert model.append(b"small", term=2).position == SEGMENT_BYTES - 200
    model.append(bytes(300), term=2)
    model.sync()
    model.log.close(clean=False)
    model.open()
    model.check()


def test_reads_that_must_not_block_give_the_same_bytes_or_none(model: LoggedModel):
    model.fill(random.Random(5), 10)
    for meta, data in model.entries:
        assert model.log.read_nowait(meta.position, meta.size) in (data, None)


def test_a_read_below_the_log_and_an_index_below_it_say_what_is_kept(model: LoggedModel):
    trimmed_to = trim_first_segments(model)
    with pytest.raises(TrimmedError, match=str(trimmed_to)):
        model.log.read(0, 10)
    with pytest.raises(TrimmedError):
        model.log.meta(0)
    with pytest.raises(TrimmedError):
        model.log.term_at(0)


def trim_first_segments(model: LoggedModel) -> int:
    model.fill(random.Random(6), 60)
    model.sync()
    position = 3 * SEGMENT_BYTES
    model.snapshot(position)
    model.trim(position)
    return position


def test_what_does_not_lie_in_one_segment_is_not_there(model: LoggedModel):
    """Who asks for it has its place from a file that has rotted."""
    model.fill(random.Random(3), 60)
    for read in (model.log.read, model.log.read_nowait):
        with pytest.raises(CorruptionError, match="do not lie in one segment"):
            read(SEGMENT_BYTES - 10, 20)


def test_trimming_drops_whole_segments_their_index_and_older_snapshots(model: LoggedModel):
    model.fill(random.Random(6), 60)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.snapshot(3 * SEGMENT_BYTES)
    model.trim(3 * SEGMENT_BYTES + 10)
    assert model.log.first_position == 3 * SEGMENT_BYTES
    assert [meta.position for meta in model.snapshots.list()] == [3 * SEGMENT_BYTES]
    assert min(model.disk.listdir("commitlog")) == f"{3 * SEGMENT_BYTES:020d}"
    assert min(model.disk.listdir("index")) == f"{3 * SEGMENT_BYTES:020d}"
    model.check(first_index=model.log.first_index)
    model.log.close()
    recovery = model.open()
    assert recovery.first_position == 3 * SEGMENT_BYTES
    assert recovery.base is not None
    model.check(first_index=model.log.first_index)


def test_nothing_is_trimmed_above_the_newest_snapshot(model: LoggedModel):
    model.fill(random.Random(6), 60)
    model.sync()
    model.trim(3 * SEGMENT_BYTES)
    assert model.log.first_position == 0
    model.snapshot(SEGMENT_BYTES)
    model.trim(3 * SEGMENT_BYTES)
    assert model.log.first_position == SEGMENT_BYTES


def test_a_pinned_segment_stays_readable_when_it_is_trimmed(model: LoggedModel):
    model.fill(random.Random(6), 60)
    model.sync()
    with model.log.pin(0) as pin:
        first = model.entries[0]
        model.snapshot(2 * SEGMENT_BYTES)
        model.trim(2 * SEGMENT_BYTES)
        while model.log.prepare_ahead(1 << 20):
            pass
        model.fill(random.Random(7), 60)
        assert pin.read(first[0].position, first[0].size) == first[1]
        pin.release()
    assert not model.disk.exists(f"commitlog/{0:020d}")
    model.check(first_index=model.log.first_index)


def test_trimmed_segments_become_the_next_ones(model: LoggedModel):
    trim_first_segments(model)
    following = max(model.disk.listdir("commitlog"))
    assert int(following) > model.log.end_position
    file = model.disk.open(f"commitlog/{following}")
    assert file.size() == SEGMENT_BYTES
    file.close()
    model.fill(random.Random(8), 40, term=2)
    model.sync()
    model.check(first_index=model.log.first_index)
    model.log.close(clean=False)
    model.open()
    model.check(first_index=model.log.first_index)


def test_space_is_prepared_and_filled_for_the_next_segment(model: LoggedModel):
    assert not model.log.prepare_ahead(1 << 20), "a log that has hardly begun fills nothing"
    model.append(bytes(SEGMENT_BYTES // 2))
    assert model.log.prepare_ahead(1000), "it has grown by far more, so nothing is filled"
    assert model.log.prepare_ahead(1000)
    assert not model.log.prepare_ahead(SEGMENT_BYTES)
    assert model.disk.stat(f"commitlog/{SEGMENT_BYTES:020d}").size_on_disk >= SEGMENT_BYTES
    model.fill(random.Random(9), 30)
    model.check()


def test_a_reset_leaves_an_empty_log_behind_the_snapshot(model: LoggedModel):
    model.fill(random.Random(6), 60)
    model.sync()
    base = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
    writer = model.snapshots.begin(base)
    writer.write(b"state")
    writer.commit()
    model.reset(base)
    assert (model.log.first_index, model.log.last_index, model.log.durable) == (1000, 999, 999)
    assert (model.log.end_position, model.log.last_chain, model.log.last_term) == (base.position, 1234, 9)
    assert model.snapshots.list() == [base]
    model.entries = []
    model.fill(random.Random(7), 20, term=10)
    model.sync()
    model.check()
    model.log.close(clean=False)
    recovery = model.open()
    assert (recovery.base, recovery.first_index, recovery.last_index) == (base, 1000, 1019)
    model.check()


def test_a_reset_takes_no_file_from_who_reserves_space_in_it(monkeypatch: pytest.MonkeyPatch):
    """Space is prepared by another thread; the reset closes the files when that is done."""
    monkeypatch.setattr(space, "RESERVE_STEP_BYTES", 256)
    model = LoggedModel(SimDisk(random.Random(1)))
    model.append()
    model.sync()
    base = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
    model.snapshots.begin(base).commit()
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
        model.reset(base)
        assert not prepared.result()
    assert model.log.end_position == base.position


def test_an_interrupted_reset_is_carried_out_at_the_next_start():
    for fatal_step in range(60):
        disk = SimDisk(random.Random(1))
        model = LoggedModel(disk)
        model.fill(random.Random(6), 30)
        model.sync()
        base = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
        writer = model.snapshots.begin(base)
        writer.commit()
        steps = 0

        def due(operation: str, path: str, fatal_step: int = fatal_step) -> bool:
            nonlocal steps
            steps += operation != "pread"
            return steps > fatal_step

        fault = disk.fail(due, once=False)
        try:
            model.reset(base)
        except StorageError:
            disk.faults.remove(fault)
            disk.crash(random.Random(fatal_step))
            recovery = model.open()
            if recovery.last_index == 999:
                assert model.snapshots.list() == [base]
            else:
                model.check()
                assert recovery.durable_index == 29
        else:
            assert fatal_step > 10
            return
    pytest.fail("the reset never came through")


def test_a_start_believes_the_intent_of_a_reset_once_it_is_on_the_disk():
    """Who announced it may have been killed before that, and where files go first, a power loss may leave neither."""
    disk = SimDisk(random.Random(1))
    model = LoggedModel(disk)
    model.fill(random.Random(6), 30)
    model.sync()
    base = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
    model.snapshots.begin(base).commit()
    prepare_reset(disk, base)
    disk.rename("raft/reset.tmp", "raft/reset")
    disk.kill()
    assert disk.durable_size("raft/reset") == 0
    durable_at_unlink: list[bool] = []
    disk.entered = lambda operation, path: (
        durable_at_unlink.append(disk.durable_size("raft/reset") > 0)
        if operation == "unlink" and path.startswith("commitlog/")
        else None
    )
    assert model.open().last_index == 999
    assert len(durable_at_unlink) > 3
    assert all(durable_at_unlink[:-1]), "the last one is of the new log"


def test_a_reset_that_was_prepared_takes_no_space():
    disk = SimDisk(random.Random(1))
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
    base = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
    other = SnapshotMeta(40 * SEGMENT_BYTES, 799, 9, 1234, MEMBERS)
    for prepared in (other, base):  # the newest counts
        model.log.files.prepare_reset(prepared)
    model.snapshots.begin(base).commit()
    disk.fill_up()
    with pytest.raises(LogFullError, match="no space to reset the log"):
        model.log.files.prepare_reset(other)
    disk.make_room()
    model.log.files.prepare_reset(base)
    disk.fill_up()
    model.reset(base)
    assert (model.log.first_index, model.log.end_position) == (1000, base.position)
    disk.crash(random.Random(2))
    assert model.open().base == base


def test_a_reset_that_was_prepared_makes_no_directory_anew():
    """A new one has a block of its own, and others have taken what was given back."""

    class DiskWhoseDirectoriesTakeABlock(SimDisk):
        def mkdir(self, path: str) -> None:
            if self.is_full and not self.exists(path):
                raise OSError(errno.ENOSPC, "No space left on device", path)
            super().mkdir(path)

    disk = DiskWhoseDirectoriesTakeABlock(random.Random(1))
    model = LoggedModel(disk)
    model.fill(random.Random(6), 60)
    model.sync()
    base = SnapshotMeta(50 * SEGMENT_BYTES, 999, 9, 1234, MEMBERS)
    model.snapshots.begin(base).commit()
    model.log.files.prepare_reset(base)
    disk.fill_up()
    model.reset(base)
    disk.kill()
    assert model.open().base == base


def test_who_reads_a_log_that_is_being_reset_is_told_that_it_is_trimmed():
    """Other threads meet the table as it is between the old segments and the new one."""
    table = SegmentTable(SEGMENT_BYTES, [Segment(SimDisk(), 0, 0)])
    table.clear()
    with pytest.raises(TrimmedError, match="position 5"):
        table.containing(5)
    with pytest.raises(TrimmedError, match="index 7"):
        table.of_index(7)


def full_model(spare_blocks: int = 0) -> tuple[SimDisk, LoggedModel]:
    disk = SimDisk(random.Random(1))
    model = LoggedModel(disk, segment_bytes=1 << 20, reserve_bytes=1 << 16)
    disk.capacity_bytes = disk.allocated_bytes + spare_blocks * 4096
    return disk, model


def fill_up(model: LoggedModel, *, privileged: bool = False) -> None:
    log = model.log
    size = HEADER_BYTES + 2000
    for _ in range(2000):
        ensure_space(log, size, privileged=privileged)
        meta, data = make_entry(log.last_index + 1, 1, log.next_position(size), log.last_chain, bytes(2000))
        model.write([meta], data)
        model.entries.append((meta, data))


def test_a_full_disk_is_met_before_anything_is_written_and_keeps_a_reserve():
    disk, model = full_model()
    with pytest.raises(LogFullError):
        fill_up(model)
    ensure_space(model.log, 5000, privileged=True)
    model.check()
    model.sync()
    assert model.log.durable == model.log.last_index
    meta, data = make_entry(
        model.log.last_index + 1, 2, model.log.next_position(60), model.log.last_chain, bytes(12), EntryKind.NO_OP
    )
    model.write([meta], data)
    model.entries.append((meta, data))
    with pytest.raises(LogFullError):
        ensure_space(model.log, 5000)
    disk.capacity_bytes += 10 << 20
    model.fill(random.Random(1), 50, term=2)
    model.check()


def test_even_privileged_entries_end_where_the_reserve_does():
    _, model = full_model()
    log = model.log
    with pytest.raises(LogFullError):
        fill_up(model, privileged=True)
    before = log.last_index, log.end_position
    meta, data = make_entry(log.last_index + 1, 1, log.next_position(50_000), log.last_chain, bytes(49_952))
    with pytest.raises(LogFullError):
        model.write([meta], data)
    with pytest.raises(LogFullError):
        log.append([meta], data)
    assert (log.last_index, log.end_position) == before


def test_a_log_opens_on_a_full_disk_and_keeps_its_reserve():
    _, model = full_model()
    with pytest.raises(LogFullError):
        fill_up(model)
    model.log.close()
    model.open()
    ensure_space(model.log, 5000, privileged=True)
    with pytest.raises(LogFullError):
        ensure_space(model.log, 60_000)


def test_space_is_reserved_over_the_end_of_a_segment():
    disk = SimDisk(random.Random(1))
    model = LoggedModel(disk, segment_bytes=1 << 16, reserve_bytes=1 << 14)
    disk.capacity_bytes = disk.allocated_bytes
    body = body_leaving(model.log, 100)
    with pytest.raises(LogFullError):
        model.append(body)
    meta, data = make_entry(0, 1, 0, 0, body)
    model.write([meta], data)
    model.entries.append((meta, data))
    ensure_space(model.log, 60, privileged=True)
    with pytest.raises(LogFullError):
        ensure_space(model.log, 200, privileged=True)
    disk.capacity_bytes += 1 << 20
    model.fill(random.Random(1), 10)
    model.check()


def test_entries_in_one_go_reach_no_further_than_space_is_reserved():
    model = LoggedModel(SimDisk(random.Random(1)), segment_bytes=1 << 16, reserve_bytes=1 << 14)
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
def test_a_failed_write_or_sync_is_fatal(operation: str):
    disk = SimDisk(random.Random(1))
    model = LoggedModel(disk)
    model.append()
    model.sync()
    disk.fail(lambda name, path: name == operation and path.startswith("commitlog"))
    with pytest.raises(StorageError, match="Input/output"):
        append_and_sync(model)
    with pytest.raises(StorageError):
        model.log.begin_sync()
    disk.crash(random.Random(1))
    model.open()
    model.entries = model.entries[: model.log.last_index + 1]
    model.check()


def test_the_recent_window_forgets_only_what_is_durable(disk: Disk, monkeypatch: pytest.MonkeyPatch):
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
    model = LoggedModel(OsDisk(str(tmp_path)))
    model.fill(random.Random(1), 30)
    model.sync()
    raw = b"".join(path.read_bytes().rstrip(b"\0") for path in sorted((tmp_path / "index").iterdir()))
    units = [meta.index for meta, _ in model.entries]
    assert [index for index in units if index.to_bytes(8, "big") + (1).to_bytes(8, "big") in raw] == units


def test_another_segment_size_is_refused(tmp_path: Path):
    disk = OsDisk(str(tmp_path))
    model = LoggedModel(disk)
    model.fill(random.Random(1), 30)
    model.log.close()
    with pytest.raises(IdentityError, match="segment_bytes"):
        LogStore.open(disk, segment_bytes=3 * SEGMENT_BYTES, snapshots=SnapshotStore.open(disk))


def test_the_commit_index_is_remembered(model: LoggedModel):
    model.fill(random.Random(1), 5)
    assert model.log.saved_commit == -1
    for index in range(4):
        model.log.save_commit(index)
    model.sync()
    model.log.close()
    assert model.open().saved_commit == 3


def test_left_in_segment_counts_down(model: LoggedModel):
    before = left_in_segment(model.log)
    meta = model.append(b"abc")
    assert left_in_segment(model.log) == before - meta.size


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
    model.log.close(clean=False)
    model.open()
    model.check(first_index=1)
