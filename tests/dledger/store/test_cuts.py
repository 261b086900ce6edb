"""A cut tail keeps its space.

After a power loss at any moment the log is the old log, the cut log, or one that ends between the two.
"""

import errno
import itertools
import random
from contextlib import suppress
from pathlib import Path

import pytest
from small_disk import output_on_a_small_disk
from store_model import Entry, LoggedModel, ensure_space, failing_after, make_identity, synced_log

from dledger.errors import LogFullError, StorageError
from dledger.format import HEADER_BYTES
from dledger.store.disk import Disk, OsDisk
from dledger.store.segments import segment_path
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import SECTOR_BYTES, Keep

LARGE_SEGMENT_BYTES = 1 << 20
RESERVE_BYTES = 1 << 16


def large_model(disk: Disk, entries: int) -> LoggedModel:
    make_identity(disk, LARGE_SEGMENT_BYTES)
    model = LoggedModel(disk, segment_bytes=LARGE_SEGMENT_BYTES, reserve_bytes=RESERVE_BYTES)
    model.fill(random.Random(1), entries, largest=2000)
    return model


def use_up(model: LoggedModel) -> None:
    """Append until only the reserve is left."""
    with pytest.raises(LogFullError):
        model.fill(random.Random(2), 1_000_000, largest=2000)
    model.sync()


def full_model(disk: SimDisk, entries: int) -> LoggedModel:
    """Return a log on a full shared disk whose own space is used up except for the reserve."""
    model = large_model(disk, entries)
    disk.fill_up()
    use_up(model)
    return model


def others_from(model: LoggedModel, first_index: int, term: int = 2) -> list[Entry]:
    """Return entries of the same sizes as those from `first_index` on, with other content."""
    bodies = [b"\7" * (meta.size - HEADER_BYTES) for meta, _ in model.entries if meta.index >= first_index]
    return model.replacements(first_index, bodies, term)


def check_after_power_loss(model: LoggedModel) -> None:
    model.check()
    model.sync()
    model.crash(keep="none")
    model.check()


@pytest.mark.parametrize(
    ("entries", "behind"), [(100, None), (1200, -3), (1200, 0), (1200, 3)], ids=["one segment", "-3", "0", "3"]
)
def test_a_log_on_a_full_disk_has_space_to_replace_its_tail(sim_disk: SimDisk, entries: int, behind: int | None):
    """The tail lies in one segment, or begins around the boundary of two."""
    model = full_model(sim_disk, entries)
    left = model.log.reserve_left
    first = model.log.last_index - 19
    if behind is not None:
        assert len(model.log.segments()) == 2
        first = behind + next(meta.index for meta, _ in model.entries if meta.position == LARGE_SEGMENT_BYTES)
    model.replace(others_from(model, first), privileged=True)
    assert model.log.reserve_left == left
    check_after_power_loss(model)


def test_a_replacement_of_several_segments_fits_on_a_full_disk(sim_disk: SimDisk):
    model = large_model(sim_disk, 3500)
    assert len(model.log.segments()) == 4
    sim_disk.fill_up()
    first = next(meta.index for meta, _ in model.entries if meta.position > LARGE_SEGMENT_BYTES // 2)
    model.replace(model.replacements(first, [bytes(1000)] * 1200, term=2))
    assert len(model.log.segments()) == 2
    check_after_power_loss(model)


@pytest.mark.parametrize("stop", ["clean", "kill", "power loss"])
@pytest.mark.parametrize("entries", [100, 900, 960, 990, 1010, 1040])
def test_a_log_opened_on_a_full_disk_still_has_its_reserve(sim_disk: SimDisk, entries: int, stop: str):
    model = full_model(sim_disk, entries)
    assert model.log.reserve_left == 1.0
    if stop == "clean":
        model.log.close()
    elif stop == "kill":
        sim_disk.kill()
    else:
        sim_disk.crash(random.Random(1), "all")
    model.open()
    assert model.log.reserve_left == 1.0
    model.check()
    kept_back = bytes(RESERVE_BYTES // 2)
    with pytest.raises(LogFullError):
        ensure_space(model.log, len(kept_back))
    ensure_space(model.log, len(kept_back) + HEADER_BYTES, privileged=True)
    check_after_power_loss(model)


def test_a_replacement_that_does_not_fit_cuts_nothing_off(sim_disk: SimDisk):
    model = full_model(sim_disk, entries=100)
    first = model.log.last_index - 4
    for bodies in ([bytes(50_000)] * 5, [b""] * 10_000):
        with pytest.raises(LogFullError):
            model.replace(model.replacements(first, bodies, term=2), privileged=True)
        model.check()


def test_a_replacement_by_many_small_entries_fits_on_a_full_disk(sim_disk: SimDisk):
    model = large_model(sim_disk, 400)
    model.sync()
    sim_disk.fill_up()
    model.replace(model.replacements(300, [b""] * 1000, term=2), privileged=True)
    check_after_power_loss(model)


def test_the_tail_is_cut_off_if_zeroing_finds_no_space(sim_disk: SimDisk):
    model = full_model(sim_disk, entries=100)
    entries = others_from(model, model.log.last_index - 19)
    fault = sim_disk.fail(lambda call, path: call == "pwrite" and path.startswith("commitlog"), errno.ENOSPC)
    with pytest.raises(LogFullError):
        model.replace(entries, privileged=True)
    assert fault not in sim_disk.faults
    model.crash(keep="none")
    model.check()
    sim_disk.make_room()
    model.replace(entries)
    model.check()


def test_a_disk_that_fails_while_the_tail_is_erased_ends_the_log(sim_disk: SimDisk):
    model = full_model(sim_disk, entries=100)
    sim_disk.fail(lambda call, path: call == "datasync" and path.startswith("commitlog"), errno.EIO)
    with pytest.raises(StorageError):
        model.log.take_cut(model.log.cut(50))


# Power losses


def cut_prefixes(disk: SimDisk, entries: list[Entry], first_index: int) -> int:
    """Open the log again, check that it holds a prefix of the entries, and return its last index.

    The prefix must contain all entries before `first_index`.
    """
    model = LoggedModel(disk)
    assert model.recovery.corrupt_ranges == []
    assert first_index - 1 <= model.log.last_index
    model.entries = entries[: model.log.last_index + 1]
    model.check()
    return model.log.last_index


def test_entries_behind_a_hole_never_return_for_any_set_of_erased_sectors(sim_disk: SimDisk):
    """The test covers all combinations of erased sectors that a power loss can leave of a tail of eight sectors."""
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    for _ in range(40):
        model.append(bytes(range(50)))
    model.sync()
    model.log.sync_mark()
    first = next(meta.index for meta, _ in model.entries if meta.position >= SECTOR_BYTES * 2)
    fault = sim_disk.fail(lambda call, path: call == "pwrite" and path.startswith("commitlog"), errno.EIO)
    with pytest.raises(StorageError):
        model.log.take_cut(model.log.cut(first))
    assert fault not in sim_disk.faults
    lowered = sim_disk.image()
    begin, end = model.entries[first][0].position, model.entries[-1][0].end
    path = "commitlog/" + "0" * 20
    sectors = range(begin // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1)
    places = [(max(begin, at * SECTOR_BYTES), min(end, (at + 1) * SECTOR_BYTES)) for at in sectors]
    assert len(places) >= 6
    ends = set()
    for erased in itertools.product((False, True), repeat=len(places)):
        sim_disk.restore(lowered)
        file = sim_disk.open(path)
        for (low, high), gone in zip(places, erased, strict=True):
            if gone:
                file.pwrite(bytes(high - low), low)
        last = cut_prefixes(sim_disk, model.entries, first)
        ends.add(last)
        # Write the first lost entry again with the same bytes: entries behind it would continue its chain.
        again = LoggedModel(sim_disk)
        for meta, data in model.entries[last + 1 : last + 2]:
            again.write([meta], data)
        sim_disk.kill()
        assert cut_prefixes(sim_disk, model.entries, first) == min(last + 1, model.entries[-1][0].index)
    assert {first - 1, model.entries[-1][0].index} < ends


@pytest.mark.parametrize("keep", ["none", "random", "all"])
@pytest.mark.parametrize("segments", [1, 2, 4])
def test_a_crash_at_any_step_of_a_cut_leaves_a_prefix_of_the_log(keep: Keep, segments: int):
    first, step, came_through = 2, 0, False
    while not came_through:
        disk = SimDisk(random.Random(step))
        model = synced_log(disk, 0)
        while len(model.log.segments()) < segments:
            model.fill(random.Random(3), 1)
        model.fill(random.Random(4), 4)
        model.sync()
        model.log.sync_mark()
        with suppress(StorageError), failing_after(disk, step, free=("pread", "open", "size")):
            model.log.take_cut(model.log.cut(first))
            came_through = True
        disk.crash(random.Random(step), keep)
        last = cut_prefixes(disk, model.entries[:first] if came_through else model.entries, first)
        assert keep != "none" or came_through or last >= first - 1
        step += 1
    assert step > 4


# A real full disk

_ON_A_SMALL_DISK = """
import dledger.store.log
from test_cuts import large_model, others_from, use_up
from dledger.store.disk import OsDisk

disk = OsDisk(str(ROOT / "node"))
disk.mkdir(".")
model = large_model(disk, 1200)
fill_the_disk()
use_up(model)
real_cut = model.log.cut
def cut(first_index):
    made = real_cut(first_index)
    fill_the_disk()
    return made
model.log.cut = cut
boundary = next(meta.index for meta, _ in model.entries if meta.position == 1 << 20)
for first in (model.log.last_index - 20, boundary + 1, boundary - 5):
    model.replace(others_from(model, first, term=first), privileged=True)
    model.check()
model.sync()
model.log.close()
recover = dledger.store.log.recover
def recover_and_lose_what_was_given_back(*arguments):
    recovered = recover(*arguments)
    fill_the_disk()
    return recovered
dledger.store.log.recover = recover_and_lose_what_was_given_back
model.open()
model.check()
print("held", len(model.log.segments()), model.log.reserve_left)
"""


def test_a_log_on_a_real_full_disk_has_space_to_replace_its_tail(tmp_path: Path):
    assert output_on_a_small_disk(tmp_path, 6, _ON_A_SMALL_DISK) == "held 2 1.0\n"


def test_the_space_of_a_file_outlives_its_erasure(tmp_path: Path):
    disk = OsDisk(str(tmp_path))
    model = large_model(disk, 200)
    paths = [segment_path(segment.start_position) for segment in model.log.segments()]
    before = [disk.stat(path).size_on_disk for path in paths]
    model.truncate(20)
    assert [disk.stat(path).size_on_disk for path in paths] == before
