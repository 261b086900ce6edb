"""A tail that is cut off gives no space away, and whenever power is lost the log is the old one, the cut one, or one
that ends between the two."""

import errno
import itertools
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from store_model import LoggedModel, ensure_space, make_identity

from dledger.errors import LogFullError, StorageError
from dledger.format import HEADER_BYTES
from dledger.store.disk import Disk, OsDisk
from dledger.store.segments import segment_path
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import SECTOR_BYTES, Keep
from dledger.types import EntryMeta

LARGE_SEGMENT_BYTES = 1 << 20
RESERVE_BYTES = 1 << 16


def large_model(disk: Disk) -> LoggedModel:
    return LoggedModel(disk, segment_bytes=LARGE_SEGMENT_BYTES, reserve_bytes=RESERVE_BYTES)


def use_up(model: LoggedModel) -> None:
    """Append until nothing is left but what is kept back."""
    with pytest.raises(LogFullError):
        model.fill(random.Random(2), 1_000_000, largest=2000)
    model.sync()


def full_model(disk: SimDisk, entries: int) -> LoggedModel:
    """A log on a full disk that others share, its own space used up but for what is kept back."""
    model = large_model(disk)
    model.fill(random.Random(1), entries, largest=2000)
    disk.fill_up()
    use_up(model)
    return model


def bodies_from(model: LoggedModel, first_index: int) -> list[bytes]:
    """Bodies of the sizes of those from `first_index` on, with other content."""
    return [b"\7" * (meta.size - HEADER_BYTES) for meta, _ in model.entries if meta.index >= first_index]


def check_after_power_loss(disk: SimDisk, model: LoggedModel) -> None:
    model.check()
    model.sync()
    disk.crash(random.Random(1), "none")
    model.open()
    model.check()


def test_a_log_on_a_full_disk_has_space_for_what_replaces_its_tail(sim_disk: SimDisk):
    model = full_model(sim_disk, entries=100)
    left = model.log.reserve_left
    first = model.log.last_index - 19
    model.replace(model.replacements(first, bodies_from(model, first), term=2), privileged=True)
    assert model.log.reserve_left == left
    check_after_power_loss(sim_disk, model)


@pytest.mark.parametrize("behind", [-3, 0, 3])
def test_it_has_it_too_if_the_tail_lies_in_two_segments(sim_disk: SimDisk, behind: int):
    model = full_model(sim_disk, entries=1200)
    assert len(model.log.segments()) == 2
    left = model.log.reserve_left
    boundary = next(meta.index for meta, _ in model.entries if meta.position == LARGE_SEGMENT_BYTES)
    first = boundary + behind
    entries = model.replacements(first, bodies_from(model, first), term=2)
    model.replace(entries, privileged=True)
    assert model.log.reserve_left == left
    check_after_power_loss(sim_disk, model)


def test_of_many_segments_the_first_one_that_goes_is_kept_as_the_spare(sim_disk: SimDisk):
    model = large_model(sim_disk)
    model.fill(random.Random(1), 3500, largest=2000)
    assert len(model.log.segments()) == 4
    sim_disk.fill_up()
    first = next(meta.index for meta, _ in model.entries if meta.position > LARGE_SEGMENT_BYTES // 2)
    model.replace(model.replacements(first, [bytes(1000)] * 1200, term=2))
    assert len(model.log.segments()) == 2
    check_after_power_loss(sim_disk, model)


@pytest.mark.parametrize("stop", ["clean", "kill", "power loss"])
@pytest.mark.parametrize("entries", [100, 900, 960, 990, 1010, 1040])
def test_a_log_that_is_opened_on_a_full_disk_has_what_it_kept_back(sim_disk: SimDisk, entries: int, stop: str):
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
    check_after_power_loss(sim_disk, model)


def test_what_cannot_be_stored_cuts_nothing_off(sim_disk: SimDisk):
    model = full_model(sim_disk, entries=100)
    first = model.log.last_index - 4
    with pytest.raises(LogFullError):
        model.replace(model.replacements(first, [bytes(50_000)] * 5, term=2), privileged=True)
    model.check()
    with pytest.raises(LogFullError):
        model.replace(model.replacements(first, [b""] * 10_000, term=2), privileged=True)
    model.check()


def test_smaller_entries_have_units_in_the_index_as_well(sim_disk: SimDisk):
    model = large_model(sim_disk)
    model.fill(random.Random(1), 400, largest=2000)
    model.sync()
    sim_disk.fill_up()
    model.replace(model.replacements(300, [b""] * 1000, term=2), privileged=True)
    check_after_power_loss(sim_disk, model)


def test_where_even_zeros_need_space_the_tail_is_cut_off(sim_disk: SimDisk):
    model = full_model(sim_disk, entries=100)
    first = model.log.last_index - 19
    entries = model.replacements(first, bodies_from(model, first), term=2)
    fault = sim_disk.fail(lambda call, path: call == "pwrite" and path.startswith("commitlog"), errno.ENOSPC)
    with pytest.raises(LogFullError):
        model.replace(entries, privileged=True)
    assert fault not in sim_disk.faults
    sim_disk.crash(random.Random(1), "none")
    model.open()
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


def cut_prefixes(disk: SimDisk, entries: list[tuple[EntryMeta, bytes]], first_index: int) -> int:
    """Open the log again: it holds a prefix of the entries, at least those before `first_index`.  Returns its end."""
    model = LoggedModel(disk)
    assert model.recovery.corrupt_ranges == []
    assert first_index - 1 <= model.log.last_index
    model.entries = entries[: model.log.last_index + 1]
    model.check()
    return model.log.last_index


def test_whichever_sectors_of_the_tail_are_erased_no_entry_behind_a_hole_ever_comes_back(sim_disk: SimDisk):
    """All 256 states that a power loss can leave of a tail of eight sectors."""
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
        # The very bytes of the first lost entry are written again: those behind it would join its chain.
        again = LoggedModel(sim_disk)
        for meta, data in model.entries[last + 1 : last + 2]:
            again.write([meta], data)
        sim_disk.kill()
        assert cut_prefixes(sim_disk, model.entries, first) == min(last + 1, model.entries[-1][0].index)
    assert {first - 1, model.entries[-1][0].index} < ends


@pytest.mark.parametrize("keep", ["none", "random", "all"])
@pytest.mark.parametrize("segments", [1, 2, 4])
def test_a_crash_at_any_step_of_a_cut_leaves_a_log_that_ends_between_the_old_end_and_the_cut(keep: Keep, segments: int):
    step = 0
    came_through = False
    while not came_through:
        step += 1
        disk = SimDisk(random.Random(step))
        make_identity(disk)
        model = LoggedModel(disk)
        while len(model.log.segments()) < segments:
            model.fill(random.Random(3), 1)
        model.fill(random.Random(4), 4)
        model.sync()
        model.log.sync_mark()
        first = 2
        left = step

        def due(operation: str, _: str) -> bool:
            nonlocal left
            left -= operation not in ("pread", "open", "size")
            return left <= 0

        fault = disk.fail(due, once=False)
        try:
            model.log.take_cut(model.log.cut(first))
            came_through = True
        except StorageError:
            pass
        disk.faults.remove(fault)
        entries = model.entries[:first] if came_through else model.entries
        disk.crash(random.Random(step), keep)
        last = cut_prefixes(disk, entries, first)
        assert keep != "none" or came_through or last >= first - 1
    assert step > 4


def test_what_was_cut_off_is_gone_even_if_the_same_entries_come_again(sim_disk: SimDisk):
    make_identity(sim_disk)
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 30)
    model.sync()
    again = model.entries[12]
    model.truncate(12)
    model.write([again[0]], again[1])
    model.entries.append(again)
    sim_disk.kill()
    model.open()
    model.check()


# A real full disk

_ON_A_SMALL_DISK = """
import dledger.store.log, pytest, random, sys
from test_cuts import bodies_from, large_model, use_up
from store_model import make_identity
from dledger.store.disk import OsDisk

root = sys.argv[1]
disk = OsDisk(root + "/node")
disk.mkdir(".")
make_identity(disk, 1 << 20)
model = large_model(disk)
model.fill(random.Random(1), 1200, largest=2000)

def fill_the_disk():
    with open(root + "/other", "ab", buffering=0) as other:
        while other.write(bytes(4096)) == 4096:
            pass

with pytest.raises(OSError):
    fill_the_disk()
use_up(model)
real_cut = model.log.cut
def cut(first_index):
    made = real_cut(first_index)
    with pytest.raises(OSError):
        fill_the_disk()
    return made
model.log.cut = cut
boundary = next(meta.index for meta, _ in model.entries if meta.position == 1 << 20)
for first in (model.log.last_index - 20, boundary + 1, boundary - 5):
    model.replace(model.replacements(first, bodies_from(model, first), term=first), privileged=True)
    model.check()
model.sync()
model.log.close()
recover = dledger.store.log.recover
def recover_and_lose_what_was_given_back(*arguments):
    recovered = recover(*arguments)
    with pytest.raises(OSError):
        fill_the_disk()
    return recovered
dledger.store.log.recover = recover_and_lose_what_was_given_back
model.open()
model.check()
print("held", len(model.log.segments()), model.log.reserve_left)
"""


def test_a_real_disk_that_is_full_and_shared_has_space_for_what_replaces_a_tail(tmp_path: Path):
    unshare = shutil.which("unshare")
    mounted = tmp_path / "small"
    mounted.mkdir()
    inside = [str(unshare), "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount -t tmpfs -o size=6m tmpfs {mounted}"
    if unshare is None or subprocess.run([*inside, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no file system of one's own (unshare --user --mount)")
    script = tmp_path / "script.py"
    script.write_text(_ON_A_SMALL_DISK)
    done = subprocess.run(
        [*inside, f"{mount} && exec {sys.executable} {script} {mounted}"],
        env={"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "held 2 1.0\n", done.stdout + done.stderr


def test_the_space_of_a_file_outlives_its_erasure(tmp_path: Path):
    disk = OsDisk(str(tmp_path))
    make_identity(disk, LARGE_SEGMENT_BYTES)
    model = large_model(disk)
    model.fill(random.Random(1), 200, largest=2000)
    paths = [segment_path(segment.start_position) for segment in model.log.segments()]
    before = [disk.stat(path).size_on_disk for path in paths]
    model.truncate(20)
    assert [disk.stat(path).size_on_disk for path in paths] == before
