"""The next segment has its file and its name before an entry needs them: a log goes on in it without any disk work."""

import asyncio
import random
import threading
from collections.abc import Callable

import pytest
from store_model import SEGMENT_BYTES, LoggedModel, body_leaving, make_entry, make_identity

from dledger.errors import StorageError
from dledger.format import HEADER_BYTES
from dledger.store.segments import segment_path
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import Keep
from dledger.types import EntryMeta

BODY = bytes(500)
NEXT = segment_path(SEGMENT_BYTES)


def following(model: LoggedModel, body: bytes = BODY) -> tuple[EntryMeta, bytes]:
    """The entry that comes next."""
    log = model.log
    position = log.next_position(HEADER_BYTES + len(body))
    return make_entry(log.last_index + 1, 1, position, log.last_chain, body)


def append_what_is_claimed(model: LoggedModel) -> int:
    """Append as an event loop does, as long as there is space; returns how many entries."""
    count = 0
    while True:
        meta, data = following(model)
        if not model.log.claim([meta], privileged=True):
            return count
        model.log.append([meta], data)
        model.entries.append((meta, data))
        count += 1


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
    sim_disk.crash(random.Random(1), "none")
    model.open()
    model.check()


def test_a_worker_that_meets_a_roll_half_way_does_not_take_the_current_segment_for_the_next(
    sim_disk: SimDisk, monkeypatch: pytest.MonkeyPatch
):
    """It would fill it with zeros, over entries."""
    model = LoggedModel(sim_disk)
    space = model.log._space
    go_on_in, made = space._go_on_in, []
    worker = threading.Thread(target=lambda: made.append(space._make_next().start), daemon=True)

    def half_way(current):
        worker.start()
        worker.join(0.2)
        go_on_in(current)

    model.append(body_leaving(model.log, 0))
    model.log.reserve(model.log.room_behind(model.log.end_position))
    monkeypatch.setattr(space, "_go_on_in", half_way)
    model.append(BODY)
    worker.join(20)
    assert made == [2 * SEGMENT_BYTES]


def test_what_is_claimed_is_there_when_it_is_written_whatever_workers_do_meanwhile(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(6), 60)
    model.sync()
    meta, data = following(model)
    while meta.position < model.log.segments()[-1].start_position + SEGMENT_BYTES:
        model.append(BODY)
        model.sync()
        meta, data = following(model)
    while not model.log.claim([meta], privileged=True):
        model.log.reserve(model.log.need_for([meta], privileged=True))
    model.snapshot(3 * SEGMENT_BYTES)

    def write(operation: str, path: str) -> None:
        """The event loop comes to it while the segments of a trim go."""
        if operation in ("rename", "unlink") and path.startswith("commitlog") and model.log.last_index < meta.index:
            model.log.append([meta], data)
            model.entries.append((meta, data))

    sim_disk.entered = write
    model.trim(3 * SEGMENT_BYTES)
    sim_disk.entered = None
    assert model.log.last_index == meta.index
    model.sync()
    sim_disk.crash(random.Random(1), "none")
    model.open()
    model.check(first_index=model.log.first_index)


def steps_until(due: Callable[[], bool]) -> Callable[[str, str], bool]:
    return lambda operation, _: operation not in ("pread", "size") and due()


@pytest.mark.parametrize("ending", ["kill", "none", "random", "all"])
def test_a_crash_at_any_step_from_reserving_a_segment_to_its_sync_loses_nothing_durable(ending: Keep | str):
    """And brings nothing back that was not written: whatever the next segment's file holds is no entry before that."""
    step, came_through = 0, False
    while not came_through:
        step += 1
        disk = SimDisk(random.Random(step))
        make_identity(disk)
        model = LoggedModel(disk)
        model.fill(random.Random(2), 20)
        model.sync()
        model.log.sync_mark()
        durable, left = model.log.durable, step

        def due() -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        fault = disk.fail(steps_until(due), once=False)
        try:
            for _ in range(2 * SEGMENT_BYTES // len(BODY)):
                model.append(BODY, term=2)
            model.log.prepare_ahead(SEGMENT_BYTES)
            model.sync()
            durable = model.log.durable
            came_through = True
        except StorageError:
            pass
        disk.faults.remove(fault)
        if ending == "kill":
            disk.kill()
        else:
            disk.crash(random.Random(step), ending)  # type: ignore[arg-type]
        recovery = model.open()
        assert recovery.corrupt_ranges == []
        assert durable <= recovery.last_index <= model.entries[-1][0].index
        model.forget_from(recovery.last_index + 1)
        model.append(BODY, term=3)
        model.sync()
        model.check()
    assert step > 20


def test_ordinary_entries_leave_what_is_kept_back():
    disk = SimDisk(random.Random(1), capacity_bytes=1 << 18)
    model = LoggedModel(disk, segment_bytes=1 << 20, reserve_bytes=1 << 12)
    model.append(BODY)
    disk.fill_up()
    meta, data = following(model)
    while model.log.claim([meta]):
        model.log.append([meta], data)
        meta, data = following(model)
    left = 0
    while model.log.claim([meta], privileged=True):
        model.log.append([meta], data)
        meta, data = following(model)
        left += meta.size
    assert left > (1 << 12) - 2 * meta.size


@pytest.mark.parametrize("keep", ["none", "random", "all"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_truncation_right_behind_a_roll_leaves_no_entry_of_the_segment_that_was_begun(keep: Keep, first: int):
    for seed in range(10):
        disk = SimDisk(random.Random(seed))
        model = LoggedModel(disk)
        model.append(body_leaving(model.log, 0))
        model.sync()
        model.log.sync_mark()
        model.fill(random.Random(seed), 2)
        again = model.entries[first]
        assert model.entries[1][0].position == SEGMENT_BYTES
        model.truncate(first)
        if seed % 2:
            model.write([again[0]], again[1])
            model.sync()
            model.entries.append(again)
        disk.crash(random.Random(seed), keep)
        assert model.open().last_index == first - 1 + seed % 2
        model.check()


def test_the_file_of_a_next_segment_does_not_pass_for_a_log_whose_only_segment_is_lost(sim_disk: SimDisk):
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.append(bytes(SEGMENT_BYTES * 3 // 4))
    model.sync()
    model.log.sync_mark()
    model.log.reserve(model.log.room_behind(model.log.end_position))
    assert sim_disk.exists(NEXT)
    sim_disk.kill()
    sim_disk.unlink(segment_path(0))
    recovery = model.open()
    assert [(known.start, known.next_index) for known in recovery.corrupt_ranges] == [(0, 1)]


def test_a_start_gives_the_next_segment_back_and_what_an_earlier_build_called_so(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.append(bytes(SEGMENT_BYTES * 3 // 4))
    model.log.close()
    sim_disk.open("commitlog/spare", create=True).close()
    assert sim_disk.exists(NEXT)
    model.reserve_bytes = 0  # what is kept back would need it
    model.open()
    assert [path for path in sim_disk.paths() if path.startswith("commitlog")] == [segment_path(0)]
