import errno
import random

import pytest

from dledger.testing.disk import BLOCK_BYTES, SimDisk
from dledger.testing.inodes import SECTOR_BYTES


def synced_file(disk: SimDisk, path: str, content: bytes) -> None:
    file = disk.open(path, create=True)
    file.pwrite(content, 0)
    file.datasync()
    disk.sync_dir(".")


def test_a_crash_keeps_what_was_synced_and_may_lose_the_rest(sim_disk: SimDisk):
    synced_file(sim_disk, "file", b"a" * 10)
    sim_disk.open("file").pwrite(b"b" * 10, 0)
    sim_disk.crash(random.Random(1), keep="none")
    assert sim_disk.open("file").pread(20, 0) == b"a" * 10


def test_a_crash_may_keep_what_was_not_synced(sim_disk: SimDisk):
    sim_disk.open("file", create=True).pwrite(b"b" * 10, 0)
    sim_disk.crash(random.Random(1), keep="all")
    assert sim_disk.open("file").pread(20, 0) == b"b" * 10


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


def test_a_name_is_lost_unless_its_directory_was_synced(sim_disk: SimDisk):
    file = sim_disk.open("file", create=True)
    file.pwrite(b"abc", 0)
    file.datasync()
    sim_disk.crash(random.Random(1), keep="none")
    assert not sim_disk.exists("file")


def test_a_sync_of_one_directory_keeps_no_name_of_another(sim_disk: SimDisk):
    sim_disk.mkdir("inside")
    sim_disk.sync_dir(".")
    sim_disk.open("inside/file", create=True)
    sim_disk.sync_dir(".")
    sim_disk.crash(random.Random(1), keep="none")
    assert sim_disk.paths() == []


def test_a_rename_is_lost_unless_its_directory_was_synced(sim_disk: SimDisk):
    synced_file(sim_disk, "old", b"abc")
    sim_disk.rename("old", "new")
    sim_disk.crash(random.Random(1), keep="none")
    assert sim_disk.exists("old")
    assert not sim_disk.exists("new")


def test_open_files_are_dead_after_a_crash(sim_disk: SimDisk):
    file = sim_disk.open("file", create=True)
    sim_disk.crash(random.Random(1))
    with pytest.raises(OSError, match="closed"):
        file.pread(1, 0)


def test_a_process_that_dies_loses_nothing_written(sim_disk: SimDisk):
    sim_disk.open("file", create=True).pwrite(b"abc", 0)
    sim_disk.kill()
    assert sim_disk.open("file").pread(3, 0) == b"abc"


def test_after_a_failed_sync_the_bytes_show_but_are_never_durable(sim_disk: SimDisk):
    synced_file(sim_disk, "file", b"aaa")
    file = sim_disk.open("file")
    file.pwrite(b"bbb", 0)
    sim_disk.fail(lambda operation, path: operation == "datasync")
    with pytest.raises(OSError, match="Input/output"):
        file.datasync()
    assert file.pread(3, 0) == b"bbb"
    file.datasync()
    sim_disk.crash(random.Random(1), keep="all")
    assert sim_disk.open("file").pread(3, 0) == b"aaa"


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


def test_a_flipped_bit_survives(sim_disk: SimDisk):
    synced_file(sim_disk, "file", b"\0\0")
    sim_disk.flip_bit("file", 9)
    sim_disk.crash(random.Random(1))
    assert sim_disk.open("file").pread(2, 0) == b"\0\2"


def test_what_is_written_through_is_durable(sim_disk: SimDisk):
    synced_file(sim_disk, "file", b"aaa")
    sim_disk.open("file", write_through=True).pwrite(b"b", 1)
    sim_disk.crash(random.Random(1), keep="none")
    assert sim_disk.open("file").pread(3, 0) == b"aba"
