import errno
import random

import pytest

from dledger.testing.disk import BLOCK_BYTES, SimDisk
from dledger.testing.inodes import SECTOR_BYTES, Keep


def synced_file(disk: SimDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.pwrite(content, 0)
    file.datasync()
    disk.sync_dir(".")


def lose_power(disk: SimDisk, keep: Keep = "none") -> None:
    disk.crash(random.Random(1), keep)


def content_of(disk: SimDisk, path: str = "file") -> bytes:
    return disk.open(path).pread(20, 0)


@pytest.mark.parametrize(("keep", "kept"), [("none", b"a" * 10), ("all", b"b" * 10)])
def test_a_crash_keeps_synced_bytes_and_may_keep_or_lose_others(sim_disk: SimDisk, keep: Keep, kept: bytes):
    synced_file(sim_disk, "file", b"a" * 10)
    sim_disk.open("file").pwrite(b"b" * 10, 0)
    lose_power(sim_disk, keep)
    assert content_of(sim_disk) == kept


def test_a_crash_tears_at_sectors():
    outcomes = set()
    for seed in range(200):
        disk = SimDisk()
        synced_file(disk, "file", b"a" * (3 * SECTOR_BYTES))
        disk.open("file").pwrite(b"b" * (3 * SECTOR_BYTES), 0)
        disk.crash(random.Random(seed))
        content = disk.open("file").pread(3 * SECTOR_BYTES, 0)
        sectors = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors)
        outcomes.add(b"".join(sector[:1] for sector in sectors))
    assert len(outcomes) == 8


def test_a_name_or_a_rename_is_lost_unless_its_directory_was_synced(sim_disk: SimDisk):
    synced_file(sim_disk, "old", b"abc")
    sim_disk.rename("old", "new")
    file = sim_disk.open("file", create=True)
    file.pwrite(b"abc", 0)
    file.datasync()
    lose_power(sim_disk)
    assert sim_disk.paths() == ["old"]
    with pytest.raises(OSError, match="closed"):
        file.pread(1, 0)


def test_a_sync_of_one_directory_keeps_no_name_of_another(sim_disk: SimDisk):
    sim_disk.mkdir("inside")
    sim_disk.sync_dir(".")
    sim_disk.open("inside/file", create=True)
    sim_disk.sync_dir(".")
    lose_power(sim_disk)
    assert sim_disk.paths() == []


def test_a_process_that_dies_loses_nothing_written(sim_disk: SimDisk):
    sim_disk.open("file", create=True).pwrite(b"abc", 0)
    sim_disk.kill()
    assert content_of(sim_disk) == b"abc"


@pytest.mark.parametrize("drops", [False, True])
def test_after_a_failed_sync_the_new_or_the_old_bytes_show_but_the_new_are_never_durable(
    sim_disk: SimDisk, drops: bool
):
    """Some file systems drop the pages that they could not write."""
    sim_disk.drops_failed_pages = drops
    synced_file(sim_disk, "file", b"aaa")
    file = sim_disk.open("file")
    file.pwrite(b"bbbb", 0)
    sim_disk.fail(lambda operation, path: operation == "datasync")
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    assert file.pread(4, 0) == (b"aaa\0" if drops else b"bbbb")
    file.datasync()
    lose_power(sim_disk, "all")
    assert content_of(sim_disk)[:3] == b"aaa"


def test_a_full_disk_refuses_new_blocks_and_takes_overwrites():
    disk = SimDisk(capacity_bytes=2 * BLOCK_BYTES)
    file = disk.open("file", create=True)
    file.reserve(0, 2 * BLOCK_BYTES)
    file.pwrite(b"x" * BLOCK_BYTES, BLOCK_BYTES)
    with pytest.raises(OSError, match="No space") as caught:
        file.pwrite(b"x", 2 * BLOCK_BYTES)
    assert caught.value.errno == errno.ENOSPC
    assert disk.usage(".") == (0, 2 * BLOCK_BYTES)
    file.truncate(BLOCK_BYTES)
    disk.open("other", create=True).pwrite(b"x", 0)


def test_flipped_bits_and_written_through_bytes_are_durable(sim_disk: SimDisk):
    synced_file(sim_disk, "file", b"\0\0\0")
    sim_disk.flip_bit("file", 9)
    sim_disk.open("file", write_through=True).pwrite(b"b", 2)
    lose_power(sim_disk)
    assert content_of(sim_disk) == b"\0\2b"


def test_an_unordered_file_system_may_keep_any_subset_of_new_names() -> None:
    outcomes = set()
    for seed in range(200):
        disk = SimDisk()
        disk.names.in_order = False
        for name in "abc":
            disk.open(name, create=True)
        disk.crash(random.Random(seed))
        outcomes.add("".join(disk.paths()))
    assert outcomes == {"", "a", "b", "c", "ab", "ac", "bc", "abc"}


def test_a_directory_sync_covers_other_directories_only_on_an_ordered_file_system() -> None:
    for in_order, kept in ((True, ["one/file", "two/file"]), (False, ["two/file"])):
        disk = SimDisk()
        disk.names.in_order = in_order
        for directory in ("one", "two"):
            disk.mkdir(directory)
        disk.sync_dir(".")
        for directory in ("one", "two"):
            disk.open(f"{directory}/file", create=True)
        disk.sync_dir("two")
        assert disk.is_durable("one/file", 0, 0) == in_order
        lose_power(disk)
        assert disk.paths() == kept


def test_a_name_is_durable_only_with_its_directory_and_its_earlier_name() -> None:
    disk = SimDisk()
    disk.names.in_order = False
    disk.mkdir("inside")
    disk.open("inside/file", create=True)
    disk.sync_dir("inside")
    assert not disk.is_durable("inside/file", 0, 0), "nobody has synced the name of the directory"
    disk.sync_dir(".")
    assert disk.is_durable("inside/file", 0, 0)
    for seed in range(50):
        other = SimDisk()
        other.names.in_order = False
        other.open("new.tmp", create=True)
        other.rename("new.tmp", "new")
        other.crash(random.Random(seed))
        assert other.paths() in ([], ["new.tmp"], ["new"])


def test_a_directory_that_is_moved_takes_its_files_along() -> None:
    disk = SimDisk()
    disk.names.in_order = False
    disk.mkdir("log")
    disk.mkdir("aside")
    disk.sync_dir(".")
    disk.open("log/file", create=True)
    disk.rename("log", "aside/log")
    disk.sync_dir(".")
    lose_power(disk)
    assert disk.paths() == ["aside/log/file"]
