"""A broker's data directory from an earlier build can be opened and keeps its content. So does one of this build.

`tests/golden/data_directory.tar.xz` has the directory twice: after a clean stop, and after a kill. The first recording
writes the archive. It stays when the texts beside it are recorded again.
"""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from dledger.config import ReplicaConfig
from dledger.replica.start.opening import open_directory
from dledger.store.disk import OsDisk
from dledger.store.verify import verify
from tests.recorded.data_directory import START_MS, Contents, write
from tests.recorded.golden_files import GOLDEN, compare, recorded_bytes
from tests.recorded.small_broker import SEGMENT_BYTES, Clock, running, use_small_files

ARCHIVE = GOLDEN / "data_directory.tar.xz"
STATES = ("stopped", "killed")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Fix the time of brokers in this process, so that no lease ends and no message is too old."""
    use_small_files(monkeypatch)
    return Clock(monkeypatch, START_MS)


async def written(folder: Path, clock: Clock) -> Path:
    """Write the directories of `STATES` below a folder with this build."""
    await write(folder / "stopped", folder / "killed", clock)
    return folder


@pytest.fixture
async def recorded(tmp_path: Path, clock: Clock) -> Path:
    """Extract the directories of `STATES` from the archive. When recording, create the archive if it is missing."""
    if os.environ.get("RECORD_GOLDEN") == "yes" and not ARCHIVE.exists():
        pack(await written(tmp_path / "made", clock), ARCHIVE)
    with tarfile.open(fileobj=io.BytesIO(recorded_bytes(ARCHIVE)), mode="r:xz") as archive:
        if hasattr(tarfile, "data_filter"):  # Debian's Python 3.11.2 has no such filter
            archive.extractall(tmp_path / "recorded", filter="data")
        else:
            archive.extractall(tmp_path / "recorded")  # the archive comes from this repository
    return tmp_path / "recorded"


def pack(folder: Path, target: Path) -> None:
    """Pack files without their owners, and without the lock that a running node holds."""

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name.endswith("/lock") else member

    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz") as archive:
        for state in STATES:
            archive.add(folder / state, state, filter=anonymous)


async def contents(directory: Path) -> list[str]:
    """Return the content that a broker reports after it starts in a directory."""
    async with running(directory) as small:
        return await Contents(small).lines()


def files_report(directory: Path) -> list[str]:
    """Return the report of an offline check of a directory, and then the result of its recovery."""
    checked = asdict(verify(str(directory)))
    del checked["directory"]
    node = "broker-a-n0"
    config = ReplicaConfig("DefaultCluster", "broker-a", node, frozenset({node}), segment_bytes=SEGMENT_BYTES)
    opened = open_directory(OsDisk(str(directory)), config, lambda: pytest.fail("it becomes another incarnation"))
    identity = msgspec.to_builtins(opened.identity)
    assert identity.pop("engine") == "native", "that is what a file means which names none"
    found = asdict(opened.recovery) | {
        "base_term": opened.base_term,
        "commit_index": opened.commit_index,
        "hard_state": opened.hard_state,
        "identity": identity,
        "may_vote": opened.may_vote,
        "notes of the start": opened.notes,
        "snapshots": opened.snapshots.list(),
    }
    opened.store.close(clean=False)
    opened.hard_state_file.close()
    return [*facts("checked", checked), *facts("recovered", found)]


def facts(where: str, values: dict[str, object]) -> list[str]:
    """Return a line for each value, without class names, which may change."""
    return [f"{where}: {name}: {msgspec.json.encode(value).decode()}" for name, value in sorted(values.items())]


@pytest.mark.parametrize("state", STATES)
def test_the_files_of_an_earlier_build_are_recovered_as_they_were(recorded: Path, state: str) -> None:
    compare(f"data_directory_{state}", files_report(recorded / state))


@pytest.mark.parametrize("state", STATES)
async def test_a_broker_reads_the_contents_of_files_of_an_earlier_build(recorded: Path, state: str) -> None:
    compare("data_directory_contents", await contents(recorded / state))


def without_digest(line: str) -> str:
    """Remove the digest from `contents`: this build understands more commands than the earlier one, so it differs."""
    return "" if line.startswith("digest ") else line


async def test_directories_of_this_build_hold_the_same(tmp_path: Path, clock: Clock) -> None:
    """Directories of this build are never recorded: `data_directory_contents` has the digest of the earlier build."""
    folder = await written(tmp_path, clock)
    earlier = recorded_bytes(GOLDEN / "data_directory_contents.txt").decode().splitlines()
    for state in STATES:
        assert list(map(without_digest, await contents(folder / state))) == list(map(without_digest, earlier))


async def test_a_directory_has_several_segments_and_snapshots_and_was_trimmed(tmp_path: Path, clock: Clock) -> None:
    folder = await written(tmp_path, clock)
    for state in STATES:
        lines = await asyncio.to_thread(files_report, folder / state)
        report = dict(line.split(": ", 2)[1:] for line in lines)
        assert report["first_position"] == str(SEGMENT_BYTES)
        assert (int(report["segments"]), len(msgspec.json.decode(report["snapshots"]))) == (4, 4)
        assert (report["problems"], report["clean"]) == ("[]", "true" if state == "stopped" else "false")
