"""A trim is memory only; the files that it leaves go later, whatever comes between."""

import asyncio
import errno
import random
from collections.abc import Callable

import pytest
from store_model import SEGMENT_BYTES, LoggedModel

from dledger import loop_guard
from dledger.errors import StorageError, TrimmedError
from dledger.store.index import IndexFiles, IndexUnit
from dledger.store.segments import list_positions
from dledger.testing.disk import SimDisk

DIRECTORIES = ("commitlog", "index", "snapshots")


@pytest.fixture
def model() -> LoggedModel:
    """Six segments, and a snapshot at the start of the fourth."""
    model = LoggedModel(SimDisk())
    rng = random.Random(7)
    while model.log.end_position < 5 * SEGMENT_BYTES:
        model.fill(rng, 10)
    model.sync()
    model.snapshot(SEGMENT_BYTES)
    model.snapshot(3 * SEGMENT_BYTES)
    return model


def lowest(model: LoggedModel) -> list[int]:
    return [min(list_positions(model.disk, directory)) for directory in DIRECTORIES]


def test_a_trim_does_no_disk_work(model: LoggedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_guard, "_tolerated", None)

    async def on_loop() -> None:
        model.log.trim(3 * SEGMENT_BYTES)

    asyncio.run(on_loop())
    assert (model.log.first_position, model.log.leftovers.due) == (3 * SEGMENT_BYTES, True)
    assert [meta.position for meta in model.snapshots.list()] == [3 * SEGMENT_BYTES]
    assert lowest(model) == [0, 0, SEGMENT_BYTES]
    model.log.sync_mark()
    model.log.remove_trimmed()
    assert lowest(model) == [3 * SEGMENT_BYTES] * 3
    assert not model.log.leftovers.due


def test_a_sync_of_the_mark_vouches_for_no_trim_that_came_while_it_ran(
    model: LoggedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = model.log._mark.sync

    def trim_meanwhile() -> None:
        model.log.trim(3 * SEGMENT_BYTES)
        sync()

    model.log.trim(SEGMENT_BYTES)
    monkeypatch.setattr(model.log._mark, "sync", trim_meanwhile)
    model.log.sync_mark()
    model.log.remove_trimmed()
    assert lowest(model) == [SEGMENT_BYTES] * 3
    assert model.log.leftovers.due
    model.log.sync_mark()
    model.log.remove_trimmed()
    assert lowest(model) == [3 * SEGMENT_BYTES] * 3


def removals(model: LoggedModel) -> int:
    """How many disk operations a removal takes."""
    operations: list[str] = []
    disk = model.disk
    assert isinstance(disk, SimDisk)
    disk.entered = lambda operation, _: operations.append(operation)
    model.log.remove_trimmed()
    disk.entered = None
    return len(operations)


@pytest.mark.parametrize("keep", ["none", "random", "all"])
def test_whatever_a_crash_leaves_of_a_trim_the_next_start_removes(
    model: LoggedModel, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = model.disk
    assert isinstance(disk, SimDisk)
    before = disk.image()
    model.log.trim(3 * SEGMENT_BYTES)
    model.log.sync_mark()
    operations = removals(model)
    assert operations > 10
    for failing in range(operations):
        disk.restore(before)
        model.open()
        model.log.trim(3 * SEGMENT_BYTES)
        model.log.sync_mark()
        countdown = iter(range(failing))
        disk.fail(lambda _operation, _path, left=countdown: next(left, None) is None, errno.EIO)  # type: ignore[misc]
        with pytest.raises(StorageError):
            model.log.remove_trimmed()
        disk.faults.clear()
        disk.crash(random.Random(failing), keep)  # type: ignore[arg-type]
        model.open()
        first = model.log.first_position
        assert first in (0, SEGMENT_BYTES, 3 * SEGMENT_BYTES), "a log begins at a snapshot"
        assert not model.log.corrupt_ranges
        assert min(list_positions(disk, "commitlog")) == first
        for meta, data in model.entries:
            if meta.index >= model.log.first_index:
                assert model.log.read(meta.position, meta.size) == data


def test_a_segment_that_is_read_is_closed_by_a_later_removal(model: LoggedModel) -> None:
    meta, data = model.entries[0]
    pin = model.log.pin(0)
    model.trim(3 * SEGMENT_BYTES)
    assert pin.read(meta.position, meta.size) == data
    assert not model.log.leftovers.due, "it waits for the reader"
    pin.release()
    assert model.log.leftovers.due
    model.log.remove_trimmed()
    assert not model.log.leftovers.due


def test_a_reader_that_outlives_the_log_closes_its_segment(model: LoggedModel) -> None:
    pin = model.log.pin(0)
    model.trim(3 * SEGMENT_BYTES)
    model.log.close()
    meta, data = model.entries[0]
    assert pin.read(meta.position, meta.size) == data
    pin.release()
    with pytest.raises(TrimmedError):
        pin._segment.acquire()


READS: dict[str, Callable[[LoggedModel], object]] = {
    "meta": lambda model: model.log.meta(0),
    "position_at": lambda model: model.log.position_at(1),
    "read_entries": lambda model: model.log.read_entries(0, SEGMENT_BYTES, verify=True),
    "index_at": lambda model: model.log.index_at(SEGMENT_BYTES - 1),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_that_a_trim_overtakes_says_that_it_is_trimmed(
    model: LoggedModel, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has found the entry kept, and looks into an index file that is removed before it comes to it."""
    model.log.close()
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", 4)
    model.open()
    real_read = IndexFiles.read

    def trim_first(index: IndexFiles, segment_start: int, slot: int) -> IndexUnit | None:
        model.trim(3 * SEGMENT_BYTES)
        return real_read(index, segment_start, slot)

    monkeypatch.setattr(IndexFiles, "read", trim_first)
    with pytest.raises(TrimmedError):
        READS[read](model)


def test_the_term_of_an_entry_that_is_trimmed_meanwhile_is_not_made_up(
    model: LoggedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    term_at = model.log._terms.term_at

    def trimmed_first(index: int) -> int:
        model.trim(3 * SEGMENT_BYTES)
        return term_at(index)

    monkeypatch.setattr(type(model.log._terms), "term_at", lambda _, index: trimmed_first(index))
    with pytest.raises(TrimmedError):
        model.log.term_at(0)
