"""Entries that come before space is reserved for them wait: nothing is refused, lost or put out of order by it."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from node_group import SECRET, SEGMENT_BYTES, Group, Journal, until

from dledger import Node, NodeConfig
from dledger.errors import BusyError, LogFullError, NotLeaderError
from dledger.replica.joining import without
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta

UNIT_BYTES = 20_000


class SlowWorkers:
    """Workers that reserve space for the logs in `held` get nowhere, and find the disk full if `is_full`.

    `waiting` is set while one tries.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: list[LogStore] = []
        self.is_full = False
        self.go_on = threading.Event()
        self.waiting = threading.Event()
        claim, reserve = LogStore.claim, LogStore.reserve

        def claim_nothing(log: LogStore, metas: Sequence[EntryMeta], *, privileged: bool = False) -> bool:
            return log not in self.held and claim(log, metas, privileged=privileged)

        def reserve_slowly(log: LogStore, need: Need) -> None:
            if log in self.held:
                self.waiting.set()
                assert self.go_on.wait(30)
                if self.is_full:
                    raise LogFullError("no space")
            reserve(log, need)

        monkeypatch.setattr(LogStore, "claim", claim_nothing)
        monkeypatch.setattr(LogStore, "reserve", reserve_slowly)

    def release(self) -> None:
        """They go on, and are slow no more."""
        self.held.clear()
        self.go_on.set()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> SlowWorkers:
    return SlowWorkers(monkeypatch)


def alone(directory: Path) -> NodeConfig:
    return NodeConfig("c", "g", "n0", directory, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)


def staged(node: Node, count: int) -> list[asyncio.Task[int]]:
    """Units, more than a segment of them, each with its number."""
    return [asyncio.create_task(node.append(bytes([number]) * UNIT_BYTES)) for number in range(count)]


def stage_until_refused(node: Node) -> None:
    for _ in range(100):
        node.stage(UNIT_BYTES, lambda _: (bytes(UNIT_BYTES),))


async def test_a_leaders_units_wait_in_their_order_over_several_segments(tmp_path: Path, workers: SlowWorkers):
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
        before = node.last_position
        workers.held.append(node.replica.store)
        tasks = staged(node, 12)
        await until(workers.waiting.is_set, "a worker that is slow")
        assert node.last_position == before
        assert not any(task.done() for task in tasks)
        with pytest.raises(BusyError, match="wait for space"):
            node.replica.change_membership(without(node.membership, node.replica.me))
        workers.release()
        positions = [await task for task in tasks]
        assert positions == sorted(positions)
        assert positions[-1] - positions[0] > 3 * SEGMENT_BYTES
        for number, position in enumerate(positions):
            assert await node.read(position, UNIT_BYTES) == bytes([number]) * UNIT_BYTES


async def test_more_than_may_wait_for_a_majority_is_refused_while_it_waits_for_space(
    tmp_path: Path, workers: SlowWorkers
):
    group = Group(tmp_path, count=1, max_uncommitted_bytes=1 << 20)
    try:
        await group.start()
        node = await group.leader()
        workers.held.append(node.replica.store)
        with pytest.raises(BusyError, match="wait for a majority"):
            stage_until_refused(node)
    finally:
        workers.release()
        await group.stop()


async def test_units_that_waited_for_space_that_is_not_there_are_not_stored_and_others_refused(
    tmp_path: Path, workers: SlowWorkers
):
    async with Node(alone(tmp_path), Journal()) as node:
        await until(lambda: node.is_ready)
        workers.held.append(node.replica.store)
        workers.is_full = True
        tasks = staged(node, 5)
        await until(workers.waiting.is_set, "a worker that is slow")
        last = node.status().last_index
        workers.go_on.set()
        for task in tasks:
            with pytest.raises(LogFullError):
                await task
        assert node.status().last_index == last
        await until(lambda: node.status().refusal is not None, "word of the full disk")
        with pytest.raises(LogFullError):
            await node.append(b"refused")
        workers.is_full = False
        workers.release()
        await until(lambda: node.status().refusal is None, "space")
        await node.append(b"after")


async def test_a_handover_waits_for_what_waits_for_space(tmp_path: Path, workers: SlowWorkers):
    group = Group(tmp_path)
    try:
        await group.start()
        leader = await group.leader()
        heir = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
        await until(lambda: group.nodes[heir].leader_id is not None)
        workers.held.append(leader.replica.store)
        tasks = staged(leader, 5)
        await until(workers.waiting.is_set, "a worker that is slow")
        moved = asyncio.create_task(leader.transfer_leadership(heir))
        await until(lambda: leader.replica.leading.hands_over, "a handover")
        assert not leader.is_ready
        with pytest.raises(NotLeaderError):
            leader.stage(1, lambda _: (b"x",))
        workers.release()
        assert await moved
        positions = [await task for task in tasks]
        assert await group.nodes[heir].read(positions[-1], UNIT_BYTES) == bytes([4]) * UNIT_BYTES
    finally:
        workers.release()
        await group.stop()


async def test_a_followers_appends_wait_while_it_hears_its_leader(tmp_path: Path, workers: SlowWorkers):
    group = Group(tmp_path)
    try:
        await group.start()
        leader = await group.leader()
        slow = next(node for node in group.nodes.values() if node is not leader)
        await until(lambda: slow.status().last_index == leader.status().last_index)
        workers.held.append(slow.replica.store)
        term, before = leader.term, slow.last_position
        await group.append(20, size=UNIT_BYTES)
        await until(workers.waiting.is_set, "a worker that is slow")
        await asyncio.sleep(3 * leader.config.election_max_ms / 1000)
        assert (slow.last_position, slow.term, leader.term, slow.leader_id) == (
            before, term, term, leader.config.node_id,
        )  # fmt: skip
        workers.release()
        await group.settled()
        assert group.same_state()
    finally:
        workers.release()
        await group.stop()
