"""A full disk is a state that ends: nothing fails because of it, and nobody has to help when there is space again."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from node_group import DEADLINE_S, SECRET, SEGMENT_BYTES, Group, Journal, until

from dledger import Node, NodeConfig
from dledger.consensus.peers import DISK_FULL
from dledger.errors import LogFullError
from dledger.format import encode_command
from dledger.replica import housekeeping
from dledger.store.disk import DiskSpace, OsDisk
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta, Role


class FullDisk:
    """Lets a log find no space while `is_full`; `privileged` entries find some unless `is_reserve_gone`.

    Logs in `spared` always find some.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.is_reserve_gone = False
        self.refusals = 0
        self.spared: list[LogStore] = []
        has, claim, reserve = LogStore.has, LogStore.claim, LogStore.reserve

        def is_full(log: LogStore, *, privileged: bool) -> bool:
            return self.is_full and log not in self.spared and (self.is_reserve_gone or not privileged)

        def has_none(log: LogStore, need: Need) -> bool:
            return not is_full(log, privileged=False) and has(log, need)

        def claim_none(log: LogStore, metas: Sequence[EntryMeta], *, privileged: bool = False) -> bool:
            return not is_full(log, privileged=privileged) and claim(log, metas, privileged=privileged)

        def refuse(log: LogStore, need: Need) -> None:
            if is_full(log, privileged=False):
                self.refusals += 1
                raise LogFullError("no space")
            reserve(log, need)

        monkeypatch.setattr(LogStore, "has", has_none)
        monkeypatch.setattr(LogStore, "claim", claim_none)
        monkeypatch.setattr(LogStore, "reserve", refuse)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def alone(directory: Path) -> NodeConfig:
    return NodeConfig("c", "g", "n0", directory, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)


async def append_once_there_is_space(node: Node, body: bytes) -> None:
    """Append again and again: a disk counts as full until a worker has found space there."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with suppress(LogFullError):
                await node.append(body)
                return
            await asyncio.sleep(0.001)


async def test_a_node_that_cannot_write_its_no_op_leads_once_it_can(tmp_path: Path, disk: FullDisk):
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
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
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


async def test_what_waits_for_space_that_is_not_there_is_refused_as_what_comes_later(tmp_path: Path, disk: FullDisk):
    """Nobody knew that the disk is full when it was taken: it is in no log, and its sender may try again."""
    journal = Journal()
    async with Node(alone(tmp_path), journal) as node:
        await until(lambda: node.is_ready)
        await node.append(b"before")
        count = journal.count
        disk.is_full = True
        assert node.status().refusal is None
        refused = await asyncio.gather(*[node.append(b"under way") for _ in range(3)], return_exceptions=True)
        assert [type(error) for error in refused] == [LogFullError] * 3
        assert "the disk of n0 is full" in str(refused[0])
        disk.is_full = False
        await append_once_there_is_space(node, b"after")
        assert journal.count == count + 1


async def test_a_leader_whose_followers_disks_are_full_refuses_instead_of_leaving_the_outcome_open(
    tmp_path: Path, disk: FullDisk
):
    group = Group(tmp_path)
    await group.start()
    try:
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
    finally:
        await group.stop()


async def test_how_full_the_disk_is_is_looked_up_beside_the_event_loop_and_once_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A disk that hangs may hang there, too: the node goes on with what it knew."""
    looks: list[bool] = []
    hangs, may_go_on = threading.Event(), threading.Event()

    def usage(_disk: OsDisk, _path: str) -> DiskSpace:
        looks.append(threading.current_thread() is threading.main_thread())
        if hangs.is_set():
            may_go_on.wait(30)
        return DiskSpace(50, 200) if may_go_on.is_set() else DiskSpace(20, 200)

    monkeypatch.setattr(housekeeping, "LOOK_AT_DISK_S", 0.0)
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready, "a leader")
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


async def test_one_full_follower_does_not_stop_a_leader(tmp_path: Path, disk: FullDisk):
    group = Group(tmp_path)
    await group.start()
    try:
        leader = await group.leader()
        full = next(node for node in group.nodes.values() if node is not leader)
        disk.spared.extend(node.replica.store for node in group.nodes.values() if node is not full)
        disk.is_full = True
        await until(lambda: DISK_FULL in [peer.disk_used for peer in leader.status().peers], "word of the full disk")
        await leader.append(b"stored")
    finally:
        await group.stop()


def writes_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of writes refused and taken."""
    return [line for line in caplog.messages if "event=writes_" in line]


async def test_an_operator_is_told_once_when_writes_begin_to_be_refused_and_once_when_they_go_on(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="dledger")
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
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
        await until(lambda: disk.refusals >= looks + 6)  # it looks again and again, and says nothing more
        assert [line.split()[:3] for line in writes_lines(caplog)] == [
            ["node=n0", "event=writes_refused", "reason='the"]
        ]
        disk.is_full = False
        await until(lambda: node.status().refusal is None)
        await node.append(b"after")
        assert [line.split()[1] for line in writes_lines(caplog)] == ["event=writes_refused", "event=writes_taken"]


async def test_a_leader_says_whose_disks_are_full_and_a_full_follower_that_its_own_is(
    tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
):
    group = Group(tmp_path)
    await group.start()
    try:
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
    finally:
        await group.stop()
