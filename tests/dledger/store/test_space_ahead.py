"""The next segment's file exists before an entry needs it, so the log continues in it without disk work."""

import asyncio
import random
import threading
from contextlib import suppress

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, body_leaving, claim, failing_after, synced_log

from dledger.errors import StorageError
from dledger.store.segments import segment_path
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import Keep

BODY = bytes(500)
NEXT = segment_path(SEGMENT_BYTES)


def append_what_is_claimed(model: LoggedModel, *, privileged: bool = True) -> int:
    """Append as an event loop does while there is space, and return the number of entries."""
    before = len(model.entries)
    entry = model.next_entry(BODY)
    while model.log.claim([entry[0]], privileged=privileged):
        model.log.append([entry[0]], entry[1])
        model.entries.append(entry)
        entry = model.next_entry(BODY)
    return len(model.entries) - before


@pytest.mark.parametrize("left", [0, 8, 100])
def test_an_event_loop_goes_on_in_the_next_segment_without_disk_work(sim_disk: SimDisk, left: int):
    model = LoggedModel(sim_disk)
    model.append(body_leaving(model.log, left))

    async def on_loop() -> int:
        return append_what_is_claimed(model)

    for segments in (2, 3, 4):
        assert asyncio.run(on_loop()) > 0
        assert asyncio.run(on_loop()) == 0, "nothing is written without space"
        assert len(model.log.segments()) == segments
        model.log.reserve(model.log.room_behind(model.log.end_position))
    model.sync()
    model.check()
    model.crash(keep="none")
    model.check()


def test_a_worker_during_a_segment_roll_prepares_the_next_and_not_the_current(
    sim_disk: SimDisk, monkeypatch: pytest.MonkeyPatch
):
    """The worker would fill the current segment with zeros, over its entries."""
    model = LoggedModel(sim_disk)
    space = model.log._space
    go_on_in, made = space._make_current, []
    worker = threading.Thread(target=lambda: made.append(space._make_next().start), daemon=True)

    def half_way(current):
        worker.start()
        worker.join(0.2)
        go_on_in(current)

    model.append(body_leaving(model.log, 0))
    model.log.reserve(model.log.room_behind(model.log.end_position))
    monkeypatch.setattr(space, "_make_current", half_way)
    model.append(BODY)
    worker.join(20)
    assert made == [2 * SEGMENT_BYTES]


def test_claimed_space_stays_available_while_a_trim_runs(synced_sim: LoggedModel):
    model = synced_sim
    meta, data = model.next_entry(BODY)
    while meta.position < model.log.segments()[-1].start_position + SEGMENT_BYTES:
        model.append(BODY)
        model.sync()
        meta, data = model.next_entry(BODY)
    claim(model.log, [meta], privileged=True)
    model.snapshot(3 * SEGMENT_BYTES)

    def write(operation: str, path: str) -> None:
        """Append from the event loop while a trim removes segments."""
        if operation in ("rename", "unlink") and path.startswith("commitlog") and model.log.last_index < meta.index:
            model.log.append([meta], data)
            model.entries.append((meta, data))

    model.sim.entered = write
    model.trim(3 * SEGMENT_BYTES)
    model.sim.entered = None
    assert model.log.last_index == meta.index
    model.sync()
    model.crash(keep="none")
    model.check(first_index=model.log.first_index)


@pytest.mark.parametrize("ending", ["kill", "none", "random", "all"])
def test_a_crash_at_any_step_from_reserving_a_segment_to_its_sync_loses_nothing_durable(ending: Keep | str):
    """The crash also brings back nothing that was not written.

    Until the next segment's first entry is synced, no content of its file counts as an entry.
    """
    step, came_through = 0, False
    while not came_through:
        model = synced_log(SimDisk(random.Random(step)), 20, seed=2)
        model.log.sync_mark()
        durable = model.log.durable
        with suppress(StorageError), failing_after(model.sim, step, free=("pread", "size")):
            for _ in range(2 * SEGMENT_BYTES // len(BODY)):
                model.append(BODY, term=2)
            model.log.prepare_ahead(SEGMENT_BYTES)
            model.sync()
            durable = model.log.durable
            came_through = True
        written = model.entries[-1][0].index
        recovery = model.kill() if ending == "kill" else model.crash(step, ending)  # type: ignore[arg-type]
        assert recovery.corrupt_ranges == []
        assert durable <= recovery.last_index <= written
        model.forget_from(recovery.last_index + 1)
        model.append(BODY, term=3)
        model.sync()
        model.check()
        step += 1
    assert step > 20


def test_ordinary_entries_leave_the_reserve_to_privileged_ones():
    disk = SimDisk(random.Random(1), capacity_bytes=1 << 18)
    model = LoggedModel(disk, segment_bytes=1 << 20, reserve_bytes=1 << 12)
    size = model.append(BODY).size
    disk.fill_up()
    append_what_is_claimed(model, privileged=False)
    assert append_what_is_claimed(model) * size > (1 << 12) - 2 * size


@pytest.mark.parametrize("keep", ["none", "random", "all"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_truncation_right_behind_a_roll_leaves_no_entry_of_the_segment_that_was_begun(keep: Keep, first: int):
    for seed in range(10):
        model = LoggedModel(SimDisk(random.Random(seed)))
        model.append(body_leaving(model.log, 0))
        model.sync()
        model.log.sync_mark()
        model.fill(random.Random(seed), 2)
        again = model.entries[first]
        assert model.entries[1][0].position == SEGMENT_BYTES
        model.truncate(first)
        if seed % 2:
            model.put(again)
            model.sync()
        assert model.crash(seed, keep).last_index == first - 1 + seed % 2
        model.check()


def test_a_prepared_next_segment_does_not_hide_the_loss_of_the_only_segment(sim_disk: SimDisk):
    model = synced_log(sim_disk, 0)
    model.append(bytes(SEGMENT_BYTES * 3 // 4))
    model.sync()
    model.log.sync_mark()
    model.log.reserve(model.log.room_behind(model.log.end_position))
    assert sim_disk.exists(NEXT)
    sim_disk.kill()
    sim_disk.unlink(segment_path(0))
    recovery = model.open()
    assert [(known.start, known.next_index) for known in recovery.corrupt_ranges] == [(0, 1)]


def test_a_start_removes_unneeded_next_segment_files_also_of_earlier_builds(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.append(bytes(SEGMENT_BYTES * 3 // 4))
    model.log.close()
    sim_disk.open("commitlog/spare", create=True).close()
    assert sim_disk.exists(NEXT)
    model.reserve_bytes = 0  # the reserve would need it
    model.open()
    assert [path for path in sim_disk.paths() if path.startswith("commitlog")] == [segment_path(0)]
