"""A trim changes memory only. The files go later, at any moment and beside any other operation."""

import asyncio
import errno
from collections.abc import Callable

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, synced_log

from dledger.errors import StorageError, TrimmedError
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import IndexFiles, IndexUnit
from dledger.store.leftovers import Leftovers
from dledger.store.segments import list_positions
from dledger.testing.disk import SimDisk
from dledger_base import loop_guard
from dledger_sim.log.mutants.names import without

DIRECTORIES = ("commitlog", "index", "snapshots")


@pytest.fixture
def model(synced_sim: LoggedModel) -> LoggedModel:
    """Return a log of six segments or more, with a snapshot at the start of the second and of the fourth."""
    assert synced_sim.log.end_position > 5 * SEGMENT_BYTES
    synced_sim.snapshot(SEGMENT_BYTES)
    synced_sim.snapshot(3 * SEGMENT_BYTES)
    return synced_sim


def lowest(model: LoggedModel) -> list[int]:
    return [min(list_positions(model.disk, directory)) for directory in DIRECTORIES]


def sync_and_remove(model: LoggedModel) -> None:
    model.log.sync_mark()
    model.log.remove_trimmed()


def test_a_trim_does_no_disk_work(model: LoggedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_guard, "_is_tolerated", None)

    async def on_loop() -> None:
        model.log.trim(3 * SEGMENT_BYTES)

    asyncio.run(on_loop())
    assert (model.log.first_position, model.log.leftovers.due) == (3 * SEGMENT_BYTES, True)
    assert [meta.position for meta in model.snapshots.list()] == [3 * SEGMENT_BYTES]
    assert lowest(model) == [0, 0, SEGMENT_BYTES]
    sync_and_remove(model)
    assert lowest(model) == [3 * SEGMENT_BYTES] * 3
    assert not model.log.leftovers.due


def test_a_mark_sync_covers_no_trim_that_began_during_the_sync(
    model: LoggedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = model.log._mark.sync

    def trim_meanwhile() -> None:
        model.log.trim(3 * SEGMENT_BYTES)
        sync()

    model.log.trim(SEGMENT_BYTES)
    monkeypatch.setattr(model.log._mark, "sync", trim_meanwhile)
    sync_and_remove(model)
    assert lowest(model) == [SEGMENT_BYTES] * 3
    assert model.log.leftovers.due
    sync_and_remove(model)
    assert lowest(model) == [3 * SEGMENT_BYTES] * 3


def removals(model: LoggedModel) -> int:
    """Return the number of disk operations of a removal."""
    operations: list[str] = []
    model.sim.entered = lambda operation, _: operations.append(operation)
    model.log.remove_trimmed()
    model.sim.entered = None
    return len(operations)


@pytest.mark.parametrize("keep", ["none", "random", "all"])
def test_the_next_start_removes_all_leftovers_of_an_interrupted_trim(
    model: LoggedModel, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = model.sim
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
        model.crash(failing, keep)  # type: ignore[arg-type]
        first = model.log.first_position
        assert first in (0, SEGMENT_BYTES, 3 * SEGMENT_BYTES), "a log begins at a snapshot"
        assert not model.log.corrupt_ranges
        assert min(list_positions(disk, "commitlog")) == first
        model.check(first_index=model.log.first_index)


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
    meta, data = model.entries[0]
    pin = model.log.pin(0)
    model.trim(3 * SEGMENT_BYTES)
    model.log.close()
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
def test_a_read_overtaken_by_a_trim_raises_trimmed_error(
    model: LoggedModel, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has seen that the entry is kept. The trim removes the index file before the reader opens it."""
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", 4)
    model.reopen()
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

    def trimmed_first(_: object, index: int) -> int:
        model.trim(3 * SEGMENT_BYTES)
        return term_at(index)

    monkeypatch.setattr(type(model.log._terms), "term_at", trimmed_first)
    with pytest.raises(TrimmedError):
        model.log.term_at(0)


@pytest.mark.parametrize(
    ("in_order", "synced", "lost"),
    [(True, True, False), (False, True, False), (True, False, False), (False, False, True)],
)
def test_index_files_are_gone_for_good_before_the_segments_go(
    *, in_order: bool, synced: bool, lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index file without its segment would mean that the segment was lost.

    If names survive a power loss independently of each other, only this case shows a missing sync of the index
    directory.
    """
    if not synced:
        monkeypatch.setattr(Leftovers, "remove", without(Leftovers.remove, "_disk", INDEX_DIRECTORY))
    found = False
    for seed in range(20):
        disk = SimDisk()
        disk.names.in_order = in_order
        model = synced_log(disk)
        model.trim_to(3 * SEGMENT_BYTES)
        found = found or bool(model.crash(seed).corrupt_ranges)
    assert found == lost
