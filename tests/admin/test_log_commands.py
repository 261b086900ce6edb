"""`dledger log` distinguishes sound logs from damaged ones, and equal logs from different ones."""

import asyncio
import errno
import json
import os
import shutil

import pytest
from click.testing import CliRunner
from cluster_checks import wait_until

from dledger import Node, NodeConfig
from dledger.store.commit import SavedCommit
from dledger.store.disk import OsDisk
from dledger.store.identity import DirectoryLock
from dledger_admin.cli import main


class Nothing:
    """State machine without state. `ready` is set once its replica leads."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def apply(self, entries): ...

    def rebuild(self, entries): ...

    def dropped(self, contexts, full): ...

    def on_leadership(self, leadership):
        if leadership.ready:
            self.ready.set()

    def snapshot(self):
        return iter(())

    def decode(self, meta, chunks):
        list(chunks)
        return lambda: 0

    def digest(self):
        return 0


async def write_log(directory, count: int) -> None:
    config = NodeConfig("c", "g", "n0", directory, b"s" * 32, segment_bytes=1 << 16, bootstrap=True)
    machine = Nothing()
    async with Node(config, machine) as node:
        await machine.ready.wait()
        for number in range(count):
            await node.append(b"body %d" % number)
        # The commit index is saved lazily.
        disk = OsDisk(str(directory))
        assert await asyncio.to_thread(wait_until, lambda: SavedCommit.read(disk) == node.commit_index, 5.0)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("log") / "n0"
    asyncio.run(write_log(directory, 5))
    return directory


@pytest.fixture
def copies(written, tmp_path):
    """Return two copies of a sound log."""
    for name in ("one", "two"):
        shutil.copytree(written, tmp_path / name)
    return tmp_path / "one", tmp_path / "two"


def dledger(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["log", *map(str, arguments)])
    return result.exit_code, result.output


def damage(directory, find: bytes, replacement: bytes) -> None:
    segment = min((directory / "commitlog").iterdir())
    data = segment.read_bytes()
    assert data.count(find) == 1
    segment.write_bytes(data.replace(find, replacement))


def test_a_sound_log_verifies_and_equal_logs_are_identical(copies):
    code, output = dledger("verify", copies[0])
    assert (code, f"{copies[0]}: ok" in output) == (0, True)
    report = json.loads(dledger("verify", copies[0], "-o", "json")[1])
    assert (report["ok"], report["comparison"]) == (True, None)
    assert report["logs"][0]["committed_position"] == report["logs"][0]["end_position"] > 0
    code, output = dledger("verify", *copies)
    assert (code, "are identical" in output) == (0, True)


def test_a_changed_byte_is_a_problem_and_a_difference(copies):
    damage(copies[1], b"body 3", b"bodY 3")
    code, output = dledger("verify", *copies)
    assert code == 1
    assert f"{copies[0]}: ok" in output
    assert f"{copies[1]}: DAMAGED" in output


def test_a_directory_without_a_node_is_named(tmp_path):
    code, output = dledger("verify", tmp_path)
    assert code == 1
    assert str(tmp_path) in output
    assert output.count("\n") == 1
    assert dledger("inspect", tmp_path)[0] == 1


def test_a_directory_in_use_is_verified_with_a_warning(copies):
    lock = DirectoryLock.acquire(str(copies[0]), 4711)
    code, output = dledger("verify", copies[0])
    lock.release()
    assert code == 0
    assert "is in use by process 4711" in output


def test_logs_on_a_file_system_that_is_mounted_read_only_can_be_read(copies, monkeypatch):
    """The system mounts a dying disk read-only, and so do people who save its files."""
    opened = os.open

    def open_read_only(path, flags, *arguments, **named):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(path).startswith(str(copies[0].parent)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return opened(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", open_read_only)
    assert dledger("verify", *copies)[0] == 0
    assert dledger("inspect", copies[0])[0] == 0
    assert dledger("export", copies[0])[0] == 0
    rescue = ["node", "rescue", "--config", str(configured(copies[0])), "--compare", str(copies[1]), "--dry-run"]
    result = CliRunner().invoke(main, rescue)
    assert (result.exit_code, f"{copies[1]} has no more" in result.output) == (0, True), result.output


def configured(directory):
    """Return the configuration of the node in a directory."""
    config = directory.parent / "broker.toml"
    config.write_text(f'cluster = "c"\nbroker_group = "g"\nnode_id = "n0"\ndata_dir = "{directory}"\n')
    return config


def test_inspect_shows_the_entries_asked_for(copies):
    entries = json.loads(dledger("inspect", copies[0], "--from", 2, "--count", 3, "-o", "json")[1])
    assert [entry["index"] for entry in entries] == [2, 3, 4]
    assert entries[1]["position"] == entries[0]["position"] + entries[0]["size"]
    text = dledger("inspect", copies[0])[1]
    assert "no-op" in text
    assert "group" in text
    code, output = dledger("inspect", copies[0], "--from", 1000)
    assert code == 1
    assert output.startswith(f"Error: {copies[0]} has no entry 1000 ")
    assert output.count("\n") == 1
