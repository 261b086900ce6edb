"""`dledger log` tells sound logs from damaged ones, and equal ones from different ones."""

import asyncio
import json
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
    """A state machine without state; `ready` is set once its replica leads."""

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
    """Two copies of a sound log."""
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


def test_a_sound_log_verifies(copies):
    code, output = dledger("verify", copies[0])
    assert code == 0
    assert f"{copies[0]}: ok" in output
    report = json.loads(dledger("verify", copies[0], "-o", "json")[1])
    assert report["ok"] is True
    assert report["comparison"] is None
    assert report["logs"][0]["committed_position"] == report["logs"][0]["end_position"] > 0


def test_equal_logs_are_identical(copies):
    code, output = dledger("verify", *copies)
    assert code == 0
    assert "are identical" in output


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
