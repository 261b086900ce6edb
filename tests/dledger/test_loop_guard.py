"""The guard finds disk work on an event loop, and nothing else."""

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest

from dledger.environment import BACKGROUND, AsyncioEnvironment, called_back
from dledger.store.disk import Disk, File, OsDisk
from dledger.testing.disk import SimDisk
from dledger_base import loop_guard
from dledger_base.loop_guard import DiskWorkOnLoopError, as_worker, excepted

BLOCKING = (
    "open", "listdir", "exists", "stat", "mkdir", "rename", "unlink", "rmtree", "sync_dir", "usage", "pread",
    "datasync", "reserve", "truncate", "close", "pwrite",
)  # fmt: skip


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return OsDisk(str(tmp_path)) if request.param == "real" else SimDisk()


@pytest.fixture(autouse=True)
def refusals_are_meant(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(loop_guard, "_is_tolerated", None)
    yield
    loop_guard.violations.clear()


def operate(disk: Disk, file: File, operation: str) -> None:
    arguments: dict[str, tuple[object, ...]] = {
        "rename": ("other/a", "other/b"),
        "pread": (1, 0),
        "datasync": (),
        "reserve": (0, 1),
        "truncate": (1,),
        "close": (),
        "pwrite": (b"x", 0),
    }
    target = disk if operation not in arguments or operation == "rename" else file
    getattr(target, operation)(*arguments.get(operation, ("other",)))


def opened(disk: Disk, path: str) -> File:
    for directory in ("other", "commitlog", "raft"):
        disk.mkdir(directory)
    return disk.open(path, create=True)


@pytest.mark.parametrize("operation", BLOCKING)
def test_disk_work_on_a_loop_is_refused_before_it_begins(disk: Disk, operation: str) -> None:
    file = opened(disk, "other/a")

    async def on_loop() -> None:
        with pytest.raises(DiskWorkOnLoopError, match=operation):
            operate(disk, file, operation)

    asyncio.run(on_loop())
    assert disk.exists("other/a")
    assert loop_guard.violations, "and it is remembered, whoever catches the error"


@pytest.mark.parametrize("path", ["commitlog/00000000000000000000", "raft/mark", "raft/commit"])
def test_an_event_loop_may_write_entries_and_read_without_blocking(disk: Disk, path: str) -> None:
    file = opened(disk, path)

    async def on_loop() -> None:
        file.pwrite(b"entry", 0)
        assert file.size() == 5
        file.pread_nowait(5, 0)

    asyncio.run(on_loop())
    assert file.pread(5, 0) == b"entry"
    assert not loop_guard.violations


def test_a_worker_may_do_anything(disk: Disk) -> None:
    file = opened(disk, "other/a")

    async def on_loop() -> None:
        environment = AsyncioEnvironment(asyncio.get_running_loop())
        try:
            await called_back(lambda done: environment.run_blocking(BACKGROUND, lambda: disk.unlink("other/a"), done))
            with as_worker():
                file.close()
        finally:
            environment.close()

    asyncio.run(on_loop())
    assert not disk.exists("other/a")


def test_an_exception_ends_where_its_block_ends(disk: Disk) -> None:
    opened(disk, "other/a")

    async def on_loop() -> None:
        with excepted("nothing is served yet"):
            assert disk.listdir("other") == ["a"]
        with pytest.raises(DiskWorkOnLoopError):
            disk.listdir("other")

    asyncio.run(on_loop())


def test_real_loops_are_watched_only_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OsDisk(str(tmp_path))

    async def on_loop() -> None:
        assert disk.listdir(".") == []
        with loop_guard.watched(), pytest.raises(DiskWorkOnLoopError):
            disk.listdir(".")

    monkeypatch.setattr(loop_guard, "_is_watching", False)
    asyncio.run(on_loop())
