"""A leader whose disk hangs hands over, at every point at which acknowledgements wait for the disk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from node_group import Group, until

from dledger import Node
from dledger.errors import LogError
from dledger.store.disk import OsDisk, OsFile


class Hanging:
    """Patch that holds calls that match (operation, path) in one node's directory until `answers` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.matches: Callable[[str, str], bool] = lambda *_: False
        self.root: Path | None = None
        self.answers = Event()
        self.met = Event()
        roots: dict[int, str] = {}
        opened = OsDisk.open

        def open_file(disk: OsDisk, path: str, **keys: Any) -> OsFile:
            file = opened(disk, path, **keys)
            roots[id(file)] = disk.root
            return file

        monkeypatch.setattr(OsDisk, "open", open_file)
        for name in ("reserve", "truncate", "datasync"):
            self._wrap(monkeypatch, OsFile, name, lambda file, *_: (roots.get(id(file)), file._path))
        for name in ("unlink", "rename"):
            self._wrap(monkeypatch, OsDisk, name, lambda disk, path, *_: (disk.root, path))

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, place: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            root, path = place(*arguments)
            if self.root is not None and root == str(self.root) and self.matches(name, path):
                self.met.set()
                self.answers.wait()
            return real(*arguments)

        monkeypatch.setattr(owner, name, call)

    def begin(self, root: Path, matches: Callable[[str, str], bool]) -> None:
        self.root, self.matches = root, matches


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hanging = Hanging(monkeypatch)
    yield hanging
    hanging.answers.set()


@pytest.fixture
async def group(tmp_path: Path, hanging: Hanging) -> AsyncIterator[Group]:
    group = Group(tmp_path, reserve_bytes=8 << 10, scrub_interval_ms=0)
    yield group
    hanging.answers.set()
    await group.stop()


async def _append(node: Node) -> None:
    with suppress(LogError):
        await node.append(bytes(4_000))


async def _keep_appending(node: Node, condition: Callable[[], bool]) -> None:
    """Send to one node until a condition holds, ignoring errors."""
    appends: list[asyncio.Task[None]] = []
    while not condition():
        appends.append(asyncio.create_task(_append(node)))
        await asyncio.sleep(0.01)
    await asyncio.gather(*appends)


HANGS: dict[str, Callable[[str, str], bool]] = {
    "reserving space": lambda operation, path: operation == "reserve" and path.startswith("commitlog"),
    "reserving space of the index": lambda operation, path: operation == "reserve" and path.startswith("index"),
    "syncing the log": lambda operation, path: operation == "datasync" and path.startswith("commitlog"),
    "syncing the mark": lambda operation, path: operation == "datasync" and path == "raft/mark",
}


@pytest.mark.parametrize("matches", HANGS.values(), ids=HANGS.keys())
async def test_a_leader_with_a_hanging_disk_is_replaced(
    group: Group, hanging: Hanging, matches: Callable[[str, str], bool]
):
    await group.start()
    await group.append(20)
    leader = await group.leader()
    hanging.begin(group.home(leader.config.node_id), matches)
    async with asyncio.timeout(30):
        await _keep_appending(leader, lambda: not leader.replica.engine.is_leader)
    await until(lambda: any(node.is_ready for node in group.nodes.values() if node is not leader))
    assert hanging.met.is_set()
    hanging.answers.set()
    await group.append(5)
    await group.agrees()


@pytest.mark.parametrize("directory", ["commitlog", "snapshots", "index"])
async def test_nothing_waits_for_a_removal_that_hangs(group: Group, hanging: Hanging, directory: str):
    await group.start()
    await group.append_until_trimmable(2)
    leader = await group.leader()
    hanging.begin(
        group.home(leader.config.node_id), lambda operation, path: operation == "unlink" and path.startswith(directory)
    )
    assert leader.trim(group.trim_candidates()[1])
    await until(hanging.met.is_set)
    await group.append(100, 4_000)
    assert leader.is_ready
    hanging.answers.set()
    await group.settled()
