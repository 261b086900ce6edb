"""A full disk is a state that ends: nothing fails because of it, and nobody has to help when there is space again."""

import asyncio
from pathlib import Path

import pytest
from node_group import SECRET, SEGMENT_BYTES, Journal, until

from dledger import Node, NodeConfig
from dledger.errors import LogFullError
from dledger.format import encode_command
from dledger.store.log import LogStore
from dledger.types import Role


class FullDisk:
    """Lets a log find no space while `is_full`; `privileged` entries find some unless `is_reserve_gone`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.is_reserve_gone = False
        self.refusals = 0
        ensure_space_to = LogStore.ensure_space_to

        def refuse(log: LogStore, end: int, *, privileged: bool = False) -> None:
            if self.is_full and (self.is_reserve_gone or not privileged):
                self.refusals += 1
                raise LogFullError("no space")
            ensure_space_to(log, end, privileged=privileged)

        monkeypatch.setattr(LogStore, "ensure_space_to", refuse)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def alone(directory: Path) -> NodeConfig:
    return NodeConfig("c", "g", "n0", directory, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)


async def test_a_node_that_cannot_write_its_no_op_leads_once_it_can(tmp_path: Path, disk: FullDisk):
    disk.is_full = disk.is_reserve_gone = True
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: disk.refusals >= 2)
        assert not node.is_ready
        assert node.status().failure is None
        assert node.replica.engine.role is not Role.LEADER
        disk.is_full = False
        await until(lambda: node.is_ready)
        await node.append(b"x")


async def test_appends_are_refused_and_commands_that_make_room_are_not(tmp_path: Path, disk: FullDisk):
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
        await node.append(b"before")
        disk.is_full = True
        with pytest.raises(LogFullError):
            await node.append(b"refused")
        applied = node.applied_index
        node.stage(0, None, commands=encode_command(16, b""), privileged=True)
        await until(lambda: node.applied_index > applied)
        assert node.reserve_left == 1.0
        disk.is_full = False
        await asyncio.wait_for(node.append(b"after"), 10)
