"""Slow reads of old data delay only other reads of old data, not the group's work or the leadership."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from node_group import Group, has_trimmed, until

from dledger import Node
from dledger.environment import COLD, UNORDERED_THREADS, called_back

READERS = 4 * UNORDERED_THREADS


GROUP_OPTIONS = {"recent_bytes": 0}


class StuckReaders:
    """Reads of old data that hang, as on an overloaded disk. All other work continues."""

    def __init__(self) -> None:
        self._served = threading.Event()
        self._readers: list[asyncio.Task[bool]] = []

    def read(self, *nodes: Node) -> None:
        """Start many reads that wait on the lane of `Node.read`."""
        for node in nodes:
            self._readers += [asyncio.create_task(self._read(node)) for _ in range(READERS)]

    async def _read(self, node: Node) -> bool:
        return await called_back(lambda done: node.env.run_blocking(COLD, lambda: self._served.wait(60), done))

    @property
    def all_wait(self) -> bool:
        return not any(reader.done() for reader in self._readers)

    async def serve(self) -> None:
        self._served.set()
        assert all(await asyncio.gather(*self._readers))


@pytest.fixture
async def readers(group: Group) -> AsyncIterator[StuckReaders]:
    assert not group.nodes
    readers = StuckReaders()
    yield readers
    await readers.serve()


async def test_a_leader_applies_while_readers_of_old_data_wait_for_the_disk(group: Group, readers: StuckReaders):
    leader = await group.start_with(10)
    readers.read(leader)
    await group.append(20)
    assert readers.all_wait


async def test_a_follower_catches_up_while_readers_of_old_data_wait_for_the_leaders_disk(
    group: Group, readers: StuckReaders
):
    await group.start()
    await group.append(10)
    leader = await group.leader()
    late = next(node_id for node_id, node in group.nodes.items() if node is not leader)
    await group.stop(late)
    await group.append(50)
    readers.read(leader)
    await group.start(late)
    await until(lambda: group.nodes[late].applied_index >= leader.applied_index, "the follower has caught up")
    assert readers.all_wait


async def test_a_new_leader_is_ready_while_readers_of_old_data_wait_for_its_disk(group: Group, readers: StuckReaders):
    leader = await group.start_with(10)
    others = [node for node in group.nodes.values() if node is not leader]
    readers.read(*others)
    await group.stop(leader.config.node_id)
    await group.append(10)
    assert readers.all_wait


async def test_a_snapshot_is_installed_while_readers_of_old_data_wait_for_both_disks(
    group: Group, readers: StuckReaders
):
    leader = await group.start_with(0)
    late = next(node_id for node_id, node in group.nodes.items() if node is not leader)
    await group.append(5)
    await group.settled()
    await group.stop(late)
    await group.append_until_trimmable(1)
    leader = await group.leader()
    position = group.trim_candidates()[-1]
    assert leader.trim(position)
    await until(lambda: has_trimmed(leader, position), "the leader has trimmed")
    readers.read(leader)
    await group.start(late)
    readers.read(group.nodes[late])
    await until(lambda: group.nodes[late].first_position == position, "the snapshot is installed")
    await until(lambda: group.nodes[late].applied_index >= leader.applied_index, "the follower has caught up")
    assert readers.all_wait
