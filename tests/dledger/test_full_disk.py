"""A full disk is a temporary state: nothing fails, and the node continues by itself once there is space."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from node_group import DEADLINE_S, Group, Journal, alone, leading, until

from dledger import Node
from dledger.consensus.peers import DISK_FULL
from dledger.errors import LogFullError
from dledger.format import encode_command
from dledger.replica.upkeep import upkeep
from dledger.store.disk import DiskSpace, OsDisk
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta, Role


class FullDisk:
    """Patch of logs that find no space while `is_full`. Privileged entries find some unless `is_reserve_gone`.

    Logs in `spared` always find space.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.is_reserve_gone = False
        self.refusals = 0
        self.spared: list[LogStore] = []
        has, has_to, claim, reserve = LogStore.has, LogStore.has_to, LogStore.claim, LogStore.reserve

        def is_full(log: LogStore, *, privileged: bool) -> bool:
            return self.is_full and log not in self.spared and (self.is_reserve_gone or not privileged)

        def has_none(log: LogStore, need: Need) -> bool:
            return not is_full(log, privileged=False) and has(log, need)

        def has_none_to(log: LogStore, end: int) -> bool:
            return not is_full(log, privileged=False) and has_to(log, end)

        def claim_none(log: LogStore, metas: Sequence[EntryMeta], *, privileged: bool = False) -> bool:
            return not is_full(log, privileged=privileged) and claim(log, metas, privileged=privileged)

        def refuse(log: LogStore, need: Need) -> None:
            if is_full(log, privileged=False):
                self.refusals += 1
                raise LogFullError("no space")
            reserve(log, need)

        monkeypatch.setattr(LogStore, "has", has_none)
        monkeypatch.setattr(LogStore, "has_to", has_none_to)
        monkeypatch.setattr(LogStore, "claim", claim_none)
        monkeypatch.setattr(LogStore, "reserve", refuse)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


async def append_once_there_is_space(node: Node, body: bytes) -> None:
    """Append until it succeeds: a disk counts as full until a worker has found space there."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(LogFullError):
                await node.append(body)
                return
            await asyncio.sleep(0.001)


async def test_a_node_without_space_for_its_no_op_leads_once_there_is_space(tmp_path: Path, disk: FullDisk):
    disk.is_full = disk.is_reserve_gone = True
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: disk.refusals >= 2)
        assert not node.is_ready
        assert node.status().failure is None
        assert node.replica.engine.role is not Role.LEADER
        disk.is_full = False
        await until(lambda: node.is_ready)
        await append_once_there_is_space(node, b"x")


async def test_appends_are_refused_and_commands_that_make_room_are_not(tmp_path: Path, disk: FullDisk):
    async with leading(tmp_path) as node:
        await node.append(b"before")
        disk.is_full = True
        await until(lambda: node.status().refusal is not None)
        with pytest.raises(LogFullError):
            await node.append(b"refused")
        applied = node.applied_index
        node.stage(0, None, commands=encode_command(16, b""), privileged=True)
        await until(lambda: node.applied_index > applied)
        assert node.reserve_left == 1.0
        disk.is_full = False
        await append_once_there_is_space(node, b"after")


async def test_a_leader_refuses_writes_while_the_disks_of_its_followers_are_full(tmp_path: Path, disk: FullDisk):
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await leader.append(b"before")
        disk.spared.append(leader.replica.store)
        disk.is_full = True
        await until(lambda: all(peer.disk_used == DISK_FULL for peer in leader.status().peers), "word of both disks")
        last = leader.status().last_index
        with pytest.raises(LogFullError, match=r"disks of n., n. are full, so that too few of 3 nodes"):
            await leader.append(b"refused")
        assert leader.status().last_index == last
        disk.is_full = False
        await until(lambda: all(peer.disk_used < DISK_FULL for peer in leader.status().peers), "word of space")
        await leader.append(b"after")


async def test_disk_usage_is_queried_off_the_event_loop_and_once_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A hanging disk may hang in this call too. The node then uses the last known value."""
    looks: list[bool] = []
    hangs, may_go_on = threading.Event(), threading.Event()

    def usage(_disk: OsDisk, _path: str) -> DiskSpace:
        looks.append(threading.current_thread() is threading.main_thread())
        if hangs.is_set():
            may_go_on.wait(30)
        return DiskSpace(50 << 30, 200 << 30) if may_go_on.is_set() else DiskSpace(20 << 30, 200 << 30)

    monkeypatch.setattr(upkeep, "DISK_CHECK_INTERVAL_S", 0.0)
    async with leading(tmp_path) as node:
        monkeypatch.setattr(OsDisk, "usage", usage)
        await until(lambda: node.status().disk_used == 900, "a look")
        hangs.set()
        try:
            seen = len(looks)
            await until(lambda: len(looks) > seen, "a look that hangs")
            seen = len(looks)
            for _ in range(10):
                await node.append(b"goes on")
            assert (node.status().disk_used, len(looks)) == (900, seen)
        finally:
            may_go_on.set()
        await until(lambda: node.status().disk_used == 750, "another look")
    assert not any(looks)


async def test_a_follower_with_a_full_disk_does_not_stop_the_leader(tmp_path: Path, disk: FullDisk):
    async with Group(tmp_path) as group:
        leader = await group.leader()
        full = next(node for node in group.nodes.values() if node is not leader)
        disk.spared.extend(node.replica.store for node in group.nodes.values() if node is not full)
        disk.is_full = True
        await until(lambda: DISK_FULL in [peer.disk_used for peer in leader.status().peers], "word of the full disk")
        await leader.append(b"stored")


def writes_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about refused and accepted writes."""
    return [line for line in caplog.messages if "event=writes_" in line]


async def test_the_begin_and_end_of_refused_writes_are_logged_once_each(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="dledger")
    async with leading(tmp_path) as node:
        await node.append(b"before")
        assert node.status().refusal is None
        disk.is_full = True
        await until(lambda: node.status().refusal is not None)
        with pytest.raises(LogFullError) as refused:
            await node.append(b"refused")
        assert node.status().refusal == str(refused.value)
        assert f"the disk of n0 is full: the file system of {tmp_path} has no space" in str(refused.value)
        assert "make room there" in str(refused.value)
        looks = disk.refusals
        await until(lambda: disk.refusals >= looks + 6)  # it looks again and again, and logs nothing more
        assert [line.split()[:3] for line in writes_lines(caplog)] == [
            ["node=n0", "event=writes_refused", "reason='the"]
        ]
        disk.is_full = False
        await until(lambda: node.status().refusal is None)
        await node.append(b"after")
        assert [line.split()[1] for line in writes_lines(caplog)] == ["event=writes_refused", "event=writes_taken"]


async def test_the_refusal_names_the_full_disks_at_the_leader_and_at_followers(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
):
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await leader.append(b"before")
        disk.spared.append(leader.replica.store)
        disk.is_full = True
        await until(
            lambda: all(node.status().refusal is not None for node in group.nodes.values()), "word of the disks"
        )
        for node in group.nodes.values():
            own = f"the disk of {node.config.node_id} is full: the file system of {node.config.data_dir} has no space"
            assert (own in str(node.status().refusal)) == (node is not leader)
        assert "so that too few of 3 nodes could store it" in str(leader.status().refusal)
        disk.is_full = False
        await until(lambda: all(node.status().refusal is None for node in group.nodes.values()), "word of space")
        assert {line.split()[0] for line in writes_lines(caplog)} == {"node=n0", "node=n1", "node=n2"}


class Usage:
    """Patch of the file systems' free and total space, in MiB. Those of `spared` logs have plenty."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.total = 900, 1000
        self.spared: list[LogStore] = []

        def usage(disk: OsDisk, _path: str) -> DiskSpace:
            plenty = any(log._disk is disk for log in self.spared)
            return DiskSpace(900 << 20 if plenty else self.free << 20, self.total << 20)

        monkeypatch.setattr(OsDisk, "usage", usage)
        monkeypatch.setattr(upkeep, "DISK_CHECK_INTERVAL_S", 0.0)


async def makes_room(node: Node) -> None:
    """Store a record and a command that make room."""
    applied = node.applied_index
    node.stage(5, lambda _: (b"moved",), privileged=True)
    node.stage(0, None, commands=encode_command(16, b""), privileged=True)
    await until(lambda: node.applied_index >= applied + 2, "both are applied")


async def test_sends_leave_the_disk_reserve_to_units_that_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = Usage(monkeypatch)
    node = Node(alone(tmp_path), Journal())
    node.watch_disk(lambda: 0.75, lambda: 8 << 20)
    async with node:
        await until(lambda: node.is_ready, "a leader")
        await node.append(b"taken")
        usage.free = 20
        await until(lambda: node.status().disk_warning is not None, "a warning")
        await node.append(b"taken above the watermark")
        usage.free = 7
        await until(lambda: node.status().refusal is not None, "a refusal")
        with pytest.raises(LogFullError, match="beside what is kept for trims, snapshots and messages that"):
            await node.append(b"refused")
        await makes_room(node)
        usage.free = 20
        await until(lambda: node.status().refusal is None, "it heals by itself")
        await node.append(b"taken again")


async def test_followers_short_of_space_store_units_that_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = Usage(monkeypatch)
    async with Group(tmp_path) as group:
        for node in group.nodes.values():
            node.watch_disk(lambda: 0.75, lambda: 8 << 20)
        leader = await group.leader()
        await leader.append(b"before")
        usage.spared.append(leader.replica.store)
        usage.free = 1
        await until(lambda: all(peer.disk_used == DISK_FULL for peer in leader.status().peers), "word of both disks")
        with pytest.raises(LogFullError, match=r"disks of n., n. are full, so that too few of 3 nodes"):
            await leader.append(b"refused")
        await makes_room(leader)
        usage.free = 900
        await until(lambda: all(peer.disk_used < DISK_FULL for peer in leader.status().peers), "word of space")
        await leader.append(b"after")


async def test_crossing_the_disk_watermark_is_logged_once_in_each_direction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="dledger")
    usage = Usage(monkeypatch)
    node = Node(alone(tmp_path), Journal())
    node.watch_disk(lambda: 0.75, lambda: 0)
    async with node:
        await until(lambda: node.is_ready, "a leader")
        assert node.status().disk_warning is None
        for free in (240, 200, 252, 240):
            usage.free = free
            await until(lambda free=free: node.disk_space == DiskSpace(free << 20, 1000 << 20), "a look")
        warning = node.status().disk_warning
        assert warning is not None
        assert "the disk of n0 is 76% full, above disk_max_used_ratio = 0.75" in warning
        assert "has 240 MiB left; make room there" in warning
        usage.free = 300
        await until(lambda: node.status().disk_warning is None, "the end of the warning")
    events = [line.split()[1] for line in caplog.messages if "event=disk_" in line]
    assert events == ["event=disk_above_watermark", "event=disk_below_watermark"]
