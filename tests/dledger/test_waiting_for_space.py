"""Entries that arrive before space is reserved wait. No entry is refused, lost or reordered because of that."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from node_group import SEGMENT_BYTES, Group, leading, until

from dledger import Node
from dledger.errors import BusyError, LogFullError, NotLeaderError
from dledger.replica.upkeep.members import without
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta

UNIT_BYTES = 20_000


class SlowWorkers:
    """Patch that holds workers that reserve space for the logs in `held`. They find the disk full if `is_full`.

    `waiting` is set while a worker tries.
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
        """Let the workers continue at normal speed."""
        self.held.clear()
        self.go_on.set()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> SlowWorkers:
    return SlowWorkers(monkeypatch)


@asynccontextmanager
async def group_of(directory: Path, workers: SlowWorkers, **options: object) -> AsyncIterator[Group]:
    """Run a group whose workers are released in the end."""
    async with Group(directory, **options) as group:
        try:
            yield group
        finally:
            workers.release()


def staged(node: Node, count: int) -> list[asyncio.Task[int]]:
    """Append numbered units of more than a segment in total."""
    return [asyncio.create_task(node.append(bytes([number]) * UNIT_BYTES)) for number in range(count)]


def stage_until_refused(node: Node) -> None:
    for _ in range(100):
        node.stage(UNIT_BYTES, lambda _: (bytes(UNIT_BYTES),))


async def test_a_leaders_units_wait_in_their_order_over_several_segments(tmp_path: Path, workers: SlowWorkers):
    async with leading(tmp_path) as node:
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


async def test_units_above_the_uncommitted_limit_are_refused_while_others_wait_for_space(
    tmp_path: Path, workers: SlowWorkers
):
    async with group_of(tmp_path, workers, count=1, max_uncommitted_bytes=1 << 20) as group:
        node = await group.leader()
        workers.held.append(node.replica.store)
        with pytest.raises(BusyError, match="wait for a majority"):
            stage_until_refused(node)


async def test_units_that_waited_for_missing_space_are_refused_and_not_stored(tmp_path: Path, workers: SlowWorkers):
    async with leading(tmp_path) as node:
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


async def test_a_handover_waits_for_units_that_wait_for_space(tmp_path: Path, workers: SlowWorkers):
    async with group_of(tmp_path, workers) as group:
        leader = await group.leader()
        heir = await group.follower()
        await group.settled()
        workers.held.append(leader.replica.store)
        tasks = staged(leader, 5)
        await until(workers.waiting.is_set, "a worker that is slow")
        moved = asyncio.create_task(leader.transfer_leadership(heir))
        await until(lambda: leader.replica.leading.is_handing_over, "a handover")
        assert not leader.is_ready
        with pytest.raises(NotLeaderError):
            leader.stage(1, lambda _: (b"x",))
        workers.release()
        assert await moved
        positions = [await task for task in tasks]
        assert await group.nodes[heir].read(positions[-1], UNIT_BYTES) == bytes([4]) * UNIT_BYTES


async def test_a_follower_short_of_prepared_space_keeps_hearing_its_leader(tmp_path: Path, workers: SlowWorkers):
    async with group_of(tmp_path, workers) as group:
        leader = await group.leader()
        slow = group.nodes[await group.follower()]
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
        await group.agrees()
