"""A node whose disk has unreadable sectors continues, or hands over before it ends."""

import errno
from functools import partial
from pathlib import Path

import pytest
from bad_sectors import BadSectors
from node_group import SEGMENT_BYTES, Group, until

from dledger import Node
from dledger.errors import CorruptionError, StorageError
from dledger.replica.upkeep import repair

GROUP_OPTIONS = {"snapshot_interval_ms": 3_600_000}


@pytest.fixture
def sectors(monkeypatch: pytest.MonkeyPatch) -> BadSectors:
    return BadSectors(monkeypatch)


def segment(group: Group, node_id: str, position: int) -> Path:
    return group.home(node_id) / "commitlog" / f"{position - position % SEGMENT_BYTES:020d}"


def healed(node: Node) -> bool:
    return node.status().repairs > 0 and node.status().corrupt_bytes == 0


async def stopped_follower(group: Group, count: int) -> str:
    """Start a group, append entries, stop a follower, and return its id."""
    await group.start_with(count)
    victim = await group.follower()
    await group.stop(victim)
    return victim


async def assert_equal(group: Group) -> None:
    await group.settled()
    assert all(node.replica.failure is None for node in group.nodes.values())
    await group.ends_equal_and_whole()


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG])
async def test_a_node_starts_with_a_sector_that_it_cannot_read(group: Group, sectors: BadSectors, number: int):
    victim = await stopped_follower(group, 150)
    sectors.add(segment(group, victim, 0), 20_480, number=number)
    await group.start(victim)
    await until(partial(healed, group.nodes[victim]))
    assert not sectors.bad
    await assert_equal(group)


SMALL = ("identity.json", "identity.copy.json", "raft/mark", "raft/hardstate", "raft/commit", "raft/boot")


@pytest.mark.parametrize("path", SMALL)
async def test_a_node_starts_with_a_small_file_that_it_cannot_read(group: Group, sectors: BadSectors, path: str):
    victim = await stopped_follower(group, 10)
    me = group.metas(victim) and (group.home(victim) / "identity.json").read_bytes()
    sectors.add(group.home(victim) / path)
    await group.start(victim)
    await group.append(10)
    sectors.bad.clear()
    assert (group.home(victim) / "identity.json").read_bytes() == me
    await assert_equal(group)


async def test_helpers_with_unreadable_sectors_refuse_reads_and_are_healed(group: Group, sectors: BadSectors):
    victim = await stopped_follower(group, 150)
    group.flip_bit(victim, 22_000)
    helpers = dict(group.nodes)
    for node_id in helpers:
        sectors.add(segment(group, node_id, 0), 32_768)
    await group.start(victim)
    await until(partial(healed, group.nodes[victim]))
    for node in helpers.values():
        with pytest.raises(CorruptionError):
            await node.read(32_800, 100)
    await until(lambda: all(healed(node) for node in helpers.values()))
    await assert_equal(group)


async def test_a_reader_is_refused_until_the_leader_is_healed(group: Group, sectors: BadSectors):
    leader = await group.start_with(150)
    right = await leader.read(20_480, 100)
    sectors.add(segment(group, leader.config.node_id, 0), 20_480)
    with pytest.raises(CorruptionError):
        await leader.read(20_480, 100)
    await until(partial(healed, leader))
    assert await leader.read(20_480, 100) == right
    await assert_equal(group)


async def test_a_leader_catches_a_follower_up_over_a_sector_that_it_cannot_read(group: Group, sectors: BadSectors):
    await group.start(recent_bytes=4096)
    victim = await group.follower()
    await group.stop(victim)
    await group.append(150)
    leader = await group.leader()
    sectors.add(segment(group, leader.config.node_id, 0), 20_480)
    await group.start(victim, recent_bytes=4096)
    await assert_equal(group)


async def test_a_leader_whose_disk_loses_rewritten_bytes_hands_over_and_ends(group: Group, sectors: BadSectors):
    leader = await group.start_with(150)
    term = leader.term
    sectors.heals = False
    sectors.add(segment(group, leader.config.node_id, 0), 20_480)
    with pytest.raises(CorruptionError):
        await leader.read(20_480, 100)
    await until(lambda: leader.replica.failure is not None)
    assert isinstance(leader.replica.failure, StorageError)
    assert not leader.replica.engine.is_leader
    assert leader.term > term
    await group.append(1)


async def test_a_leader_that_finds_ever_new_bad_sectors_hands_over_and_ends(
    group: Group, sectors: BadSectors, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(repair, "MAX_DETECTED", 2)
    leader = await group.start_with(150)
    for position in (8_192, 20_480, 40_960):
        sectors.add(segment(group, leader.config.node_id, 0), position)
        with pytest.raises(CorruptionError):
            await leader.read(position, 100)
        await until(lambda: not leader.replica.store.corrupt_ranges or leader.replica.failure is not None)
    await until(lambda: leader.replica.failure is not None)
    assert "is failing" in str(leader.replica.failure)
    await group.append(1)
