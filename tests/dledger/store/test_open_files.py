"""Open files of the log, including the files given to readers that call the operating system themselves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, make_identity, synced_log

from dledger.errors import BusyError, LogFullError, TrimmedError
from dledger.store.damage import CorruptRange
from dledger.store.disk import OsDisk
from dledger.store.reader import OpenFile
from dledger.store.segments import Segment
from dledger.testing.disk import SimDisk


@pytest.fixture
def model(tmp_path: Path) -> LoggedModel:
    """Return a log of several segments on a real disk."""
    return synced_log(OsDisk(str(tmp_path)))


def test_with_open_file_gives_the_segment_file_of_the_position(model: LoggedModel) -> None:
    for meta, data in model.entries:
        model.log.read(meta.position, 1)  # opens the file

        def read(file: OpenFile, start: int = meta.position, size: int = meta.size) -> bytes:
            assert file.start == start - start % SEGMENT_BYTES
            assert file.end == min(file.start + SEGMENT_BYTES, model.log.end_position)
            return os.pread(file.descriptor, size, start - file.start)

        assert model.log.with_open_file(meta.position, read) == data


def is_refused(model: LoggedModel, position: int = 0) -> bool:
    return model.log.with_open_file(position, lambda _: pytest.fail("it must not be read")) is None


def test_with_open_file_gives_none_outside_of_the_log_and_for_a_damaged_or_unopened_segment(
    model: LoggedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.trim_to(SEGMENT_BYTES)
    for position in (-1, 0, SEGMENT_BYTES - 1, model.log.end_position, 2**62):
        assert is_refused(model, position)
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "acquire_open", lambda _: None)
        assert is_refused(model, SEGMENT_BYTES)
    model.log.read(SEGMENT_BYTES, 1)
    assert model.log.with_open_file(SEGMENT_BYTES, lambda _: True)
    model.log._damage.add(CorruptRange(SEGMENT_BYTES + 10, SEGMENT_BYTES + 20, 0, 1))
    assert is_refused(model, SEGMENT_BYTES)


def test_with_open_file_gives_none_on_a_disk_without_descriptors(synced_sim: LoggedModel) -> None:
    synced_sim.log.read(0, 1)
    assert is_refused(synced_sim)


def test_with_open_file_holds_the_segment_during_the_read(model: LoggedModel) -> None:
    def broken(_: OpenFile) -> NoReturn:
        assert segment.held
        raise ZeroDivisionError

    model.log.read(0, 1)
    segment = model.log._table.containing(0)
    assert model.log.with_open_file(0, lambda _: segment.held)
    with pytest.raises(ZeroDivisionError):
        model.log.with_open_file(0, broken)
    assert not segment.held


# Number of open files


def long_log(disk: SimDisk, segments: int, limit: int) -> LoggedModel:
    """Return a log of many segments that was written and opened with few open files."""
    make_identity(disk)
    model = LoggedModel(disk, max_open_segments=limit)
    while len(model.log._table) < segments:
        model.append(bytes(1_800))
        model.sync()
    return model


def at_the_file_limit(model: LoggedModel) -> None:
    """Close all idle files, and let no more be opened."""
    while model.log.open_files.spare_one():
        pass
    model.sim.max_files = model.sim.open_files


def write_segments(model: LoggedModel, count: int) -> None:
    for _ in range(2 * count):
        model.append(bytes(1_800))


OTHERS = 14
"""Maximum number of other open files: index files, small files, and the segments being written."""


def test_a_long_log_is_opened_and_read_with_few_files(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 200, limit=5)
    assert sim_disk.open_files <= 5 + OTHERS, "it was written with few files too"
    assert len(model.log.open_files) <= 5 + 1
    model.log.close()
    assert sim_disk.open_files == 0
    sim_disk.max_files = 5 + OTHERS
    model.open()
    model.check()
    assert sim_disk.open_files <= 5 + OTHERS
    model.append(b"more")
    model.sync()
    model.log.close()
    assert sim_disk.open_files == 0


def test_at_the_file_limit_idle_files_make_room_for_written_files(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 60, limit=20)
    for meta, _ in model.entries[:30]:
        model.log.read(meta.position, 1)
    sim_disk.max_files = sim_disk.open_files
    for _ in range(60):
        model.append(bytes(1_800))
        model.sync()
    model.check()


def test_at_the_file_limit_reads_are_busy_and_writes_are_refused_for_a_while(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 30, limit=1)
    with model.log.pin(0):
        at_the_file_limit(model)
        with pytest.raises(BusyError):
            model.log.read(5 * SEGMENT_BYTES, 1)
        with pytest.raises(LogFullError):
            write_segments(model, 10)
        sim_disk.max_files = None
    model.append(b"it goes on")
    model.sync()
    model.check()


def test_at_the_file_limit_reads_of_an_index_are_busy(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 30, limit=1)
    with model.log.pin(0):
        model.log._index.close()
        at_the_file_limit(model)
        for read in (model.log.is_in_line, model.log.scrub_step):
            with pytest.raises(BusyError):
                read(1)
        sim_disk.max_files = None
    assert model.log.scrub_step(1) == []
    model.check()


def test_at_the_file_limit_one_index_makes_room_for_another(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 30, limit=1)
    model.log.is_in_line(0)
    at_the_file_limit(model)
    assert all(model.log.is_in_line(meta.index) for meta, _ in model.entries)


def test_a_full_disk_only_delays_the_correction_of_an_index(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 5, limit=5)
    sim_disk.flip_bit("index/00000000000000000000", 8 * 20)
    sim_disk.fail(lambda operation, path: operation == "pwrite" and path.startswith("index/"), errno.ENOSPC)
    with pytest.raises(BusyError):
        model.log.scrub_step(1 << 20)
    for _ in range(3):  # to the end of this round, and all of the next one
        assert model.log.scrub_step(1 << 20) == []
    assert model.log.is_in_line(1)


def test_a_sync_at_the_file_limit_releases_files_and_succeeds_on_a_retry(sim_disk: SimDisk) -> None:
    """A sync of many segments releases their files if no other file can be opened.

    A hanging disk leaves all of them open. Without the release the sync could not open the file that it waits for.
    """
    model = long_log(sim_disk, 2, limit=8)
    write_segments(model, 30)
    model.log._index.close()  # otherwise an index file makes room
    at_the_file_limit(model)
    ticket = model.begin_sync()
    with pytest.raises(BusyError):
        ticket.run()
    ticket.run()
    model.log.finish_sync(ticket)
    assert model.log.durable == model.log.last_index
    model.crash(keep="none")
    model.check()


def test_a_segment_that_is_removed_while_its_file_is_opened_is_gone_and_no_error(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 6, limit=1)
    at_the_file_limit(model)
    sim_disk.max_files = None
    segment = model.log._table.containing(SEGMENT_BYTES)

    def remove(operation: str, path: str) -> None:
        if operation == "open" and path.endswith(f"{SEGMENT_BYTES:020}"):
            sim_disk.entered = None
            segment.retire()
            sim_disk.unlink(path)

    sim_disk.entered = remove
    with pytest.raises(TrimmedError):
        segment.acquire()


def test_the_file_that_is_written_is_not_closed_before_everything_in_it_is_durable(sim_disk: SimDisk) -> None:
    model = long_log(sim_disk, 10, limit=1)
    start = model.log._table.last.start
    while model.log._table.last.start == start:
        model.append(bytes(1_800))
    segment = model.log._table.containing(start)
    model.log.read(0, 1)
    model.log.read(SEGMENT_BYTES, 1)
    assert not segment.close_idle()
    model.sync()
    assert segment.close_idle()
