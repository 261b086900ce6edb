from pathlib import Path

import pytest

from dledger.store.disk import Disk, OsDisk, write_file_durably


def test_a_file_keeps_its_bytes_over_cuts_and_a_close(disk: Disk):
    file = disk.open("file", create=True)
    file.pwrite(b"hello", 3)
    assert file.pread(10, 0) == b"\0\0\0hello"
    assert file.pread(2, 4) == b"el"
    assert file.pread(5, 100) == b""
    assert file.size() == 8
    file.truncate(5)
    file.pwrite(memoryview(b"z"), 7)
    assert file.pread(10, 0) == b"\0\0\0he\0\0z"
    file.close()
    assert disk.open("file").pread(10, 0) == b"\0\0\0he\0\0z"


def test_a_read_that_must_not_block_gives_all_or_nothing(disk: Disk):
    file = disk.open("file", create=True)
    file.pwrite(b"abcdef", 0)
    assert {file.pread_nowait(4, 1) for _ in range(20)} <= {None, b"bcde"}
    assert file.pread_nowait(4, 4) is None


def test_opening_a_missing_file_fails_unless_it_may_be_created(disk: Disk):
    with pytest.raises(FileNotFoundError):
        disk.open("missing")
    with pytest.raises(FileNotFoundError):
        disk.open("missing/file", create=True)


def test_reserved_bytes_are_there_and_zero(disk: Disk):
    file = disk.open("file", create=True)
    file.pwrite(b"abc", 0)
    file.reserve(0, 10_000)
    assert file.size() == 10_000
    assert file.pread(10_000, 0) == b"abc" + bytes(9_997)
    assert disk.stat("file").size_on_disk >= 10_000


def test_writing_through_shows_at_once(disk: Disk):
    disk.open("file", create=True)
    disk.open("file", write_through=True).pwrite(b"abc", 0)
    assert disk.open("file").pread(3, 0) == b"abc"


def test_names_come_and_go(disk: Disk):
    disk.mkdir("a/b")
    disk.mkdir("a/b")
    for path in ("", ".", "a"):
        disk.sync_dir(path)
    disk.open("a/b/one", create=True).close()
    disk.open("a/two", create=True).close()
    assert sorted(disk.listdir("a")) == ["b", "two"]
    disk.rename("a/two", "a/b/one")
    assert disk.listdir("a") == ["b"]
    disk.unlink("a/b/missing")
    disk.rename("a/b", "a/c")
    assert disk.exists("a/c/one")
    assert not disk.exists("a/b")
    disk.rmtree("a")
    disk.rmtree("a")
    assert not disk.exists("a")
    with pytest.raises(FileNotFoundError):
        disk.listdir("a")
    free, total = disk.usage(".")
    assert 0 < free <= total


def test_a_directory_takes_the_place_of_an_empty_one_only(disk: Disk):
    for name in ("empty", "full", "moved"):
        disk.mkdir(name)
    for name in ("full", "moved"):
        disk.open(f"{name}/file", create=True).close()
    with pytest.raises(OSError, match="not empty"):
        disk.rename("moved", "full")
    disk.rename("moved", "empty")
    assert disk.listdir("empty") == ["file"]
    assert not disk.exists("moved")


def test_an_unlinked_file_stays_readable_while_open(disk: Disk):
    file = disk.open("file", create=True)
    file.pwrite(b"abc", 0)
    disk.unlink("file")
    assert file.pread(3, 0) == b"abc"
    assert not disk.exists("file")


def test_a_small_file_is_replaced_as_a_whole(disk: Disk):
    write_file_durably(disk, "small", b"one")
    write_file_durably(disk, "small", b"three")
    assert disk.open("small").pread(10, 0) == b"three"
    assert disk.listdir(".") == ["small"]


def test_a_name_that_cannot_be_read_is_not_taken_for_missing(tmp_path: Path):
    """A node whose directory seems to be empty would begin anew. A loop of links is an error that any user can make."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        OsDisk(str(tmp_path)).exists("loop")
    assert not OsDisk(str(tmp_path)).exists("missing/file")
