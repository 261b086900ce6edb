"""Bit rot below the durable mark is found, is not served, and is healed with a peer's bytes."""

import asyncio
import logging
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from node_group import DEADLINE_S, SEGMENT_BYTES, Group, Journal, until

from dledger import Node
from dledger.errors import ContradictionError, CorruptionError
from dledger.format import HEADER_BYTES
from dledger.replica.peers import outbox
from dledger.types import EntryMeta

GROUP_OPTIONS = {"snapshot_interval_ms": 3_600_000}


def healed(node: Node, count: int) -> bool:
    return node.status().repairs == count and node.status().corrupt_bytes == 0


async def test_a_restarted_node_heals_a_body_and_a_header(group: Group, caplog: pytest.LogCaptureFixture):
    await group.start_with(150)
    victim = next(node_id for node_id, node in group.nodes.items() if not node.is_ready)
    await group.stop(victim)
    metas = group.metas(victim)
    group.flip_bit(victim, metas[20].position + HEADER_BYTES + 7)
    group.flip_bit(victim, metas[90].position + 13)
    with caplog.at_level(logging.ERROR, "dledger.replica.upkeep.repair"):
        await group.start(victim)
        await until(partial(healed, group.nodes[victim], 2))
    said = [record.getMessage() for record in caplog.records if "event=corruption" in record.getMessage()]
    assert len(said) == 2
    assert any(f"start={metas[20].position} end={metas[20].end}" in line for line in said)
    await group.agrees()
    await group.ends_equal_and_whole()


async def test_the_scrub_finds_and_heals_rot_of_a_running_node(group: Group):
    leader = await group.start_with(150, scrub_interval_ms=0)
    victim = leader.config.node_id
    meta = group.metas(victim)[30]
    group.flip_bit(victim, meta.end - 1)
    await until(partial(healed, leader, 1))
    assert (await leader.read(meta.position, meta.size))[-1] == (await leader.read(meta.position, meta.size))[-2]
    await group.ends_equal_and_whole()


async def test_two_nodes_heal_each_other_without_a_third(group: Group):
    await group.start_with(150)
    await group.stop()
    metas = group.metas("n0")
    group.flip_bit("n0", metas[10].position + 60)
    group.flip_bit("n1", metas[100].position + 60)
    await group.start("n0", "n1")
    await until(lambda: all(healed(node, 1) for node in group.nodes.values()))
    await group.agrees()
    await group.start("n2")
    await group.settled()
    await group.ends_equal_and_whole()


def reads_into(rotten: EntryMeta) -> Iterator[tuple[int, int]]:
    """Yield position and size of reads that have at least one byte of a rotten entry, of each kind."""
    yield rotten.position, rotten.size
    yield rotten.position, 1
    yield rotten.end - 1, 1
    yield rotten.position - 1, 2
    yield rotten.position - 500, 600
    yield rotten.position - 500, rotten.size + 1_000
    yield rotten.position + 1, rotten.size - 2
    yield rotten.end - 1, 500


async def test_a_rotten_range_without_a_healthy_peer_is_not_served_and_ends_no_node(group: Group):
    await group.start_with(150)
    await group.stop()
    bad = group.metas("n0")[10]
    for node_id in ("n0", "n1"):
        group.flip_bit(node_id, bad.position + 60)
    await group.start("n0", "n1")
    await until(lambda: all(node.status().corrupt_bytes == bad.size for node in group.nodes.values()))
    for node in group.nodes.values():
        for position, size in reads_into(bad):
            with pytest.raises(CorruptionError, match="read them on another replica"):
                await node.read(position, size)
        assert await node.read(0, bad.position)
        assert await node.read(bad.end, bad.size)
        assert node.status().voter
        assert node.status().failure is None
    await until(lambda: any(node.role == "leader" for node in group.nodes.values()))
    assert not group.leaders, "nobody can apply the log up to its own no-op"
    await group.start("n2")
    await until(lambda: healed(group.nodes["n0"], 1) and healed(group.nodes["n1"], 1))
    await group.append(5)
    await group.agrees()
    await group.ends_equal_and_whole()


async def test_a_leader_that_finds_rot_while_a_follower_catches_up_heals_and_sends(group: Group):
    await group.start("n0", "n1", recent_bytes=0)
    await group.append(150)
    await group.settled()
    leader = await group.leader()
    group.flip_bit(leader.config.node_id, group.metas(leader.config.node_id)[50].position + 60)
    await group.start("n2", recent_bytes=0)
    await until(lambda: group.nodes["n2"].applied_index == leader.applied_index)
    assert healed(leader, 1)
    await group.ends_equal_and_whole()


async def test_rot_taken_for_intact_is_found_when_repaired_bytes_do_not_join(group: Group):
    """Rot that passed as intact is found, since the repaired bytes before it do not join it.

    Behind a corrupt entry the chain is unknown. If the next entry's chain crc rots too, recovery blames the entry after
    it.
    """
    await group.start_with(150)
    await group.stop("n1")
    metas = group.metas("n1")
    chain_crc = 36
    for index in (40, 41):
        group.flip_bit("n1", metas[index].position + chain_crc)
    await group.start("n1")
    await until(lambda: group.nodes["n1"].status().repairs > 0 and not group.nodes["n1"].status().corrupt_bytes)
    await group.settled()
    await group.ends_equal_and_whole()


async def test_a_rotten_membership_entry_takes_effect_once_healed(group: Group):
    await group.start()
    await group.append(5)
    leader = await group.leader()
    victim, removed = (node_id for node_id in group.ids if node_id != leader.config.node_id)
    await group.stop(removed)
    leader.remove(removed)
    await until(lambda: len(group.nodes[victim].membership.voters) == 2)
    await group.append(5)
    await group.settled()
    await group.stop(victim)
    change = next(meta for meta in group.metas(victim) if meta.membership is not None)
    group.flip_bit(victim, change.position + HEADER_BYTES + 5)
    await group.start(victim)
    await until(partial(healed, group.nodes[victim], 1))
    assert group.nodes[victim].membership == leader.membership


async def test_a_read_that_fails_has_its_range_healed_without_waiting_for_the_scrub(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.replica.upkeep.repair.SCRUB_IDLE_BYTES", 0)
    await group.start_with(150)
    node = next(node for node in group.nodes.values() if not node.is_ready)
    victim = node.config.node_id
    lost = [meta for meta in group.metas(victim) if SEGMENT_BYTES * 3 // 2 < meta.position < SEGMENT_BYTES * 2]
    os.truncate(group.home(victim) / "commitlog" / f"{SEGMENT_BYTES:020d}", SEGMENT_BYTES // 2)
    with pytest.raises(CorruptionError, match="inside the log"):
        await node.read(lost[-1].position, lost[-1].size)
    await until(partial(healed, node, 1))
    assert len(await node.read(lost[-1].position, lost[-1].size)) == lost[-1].size
    await group.ends_equal_and_whole()


async def test_views_inside_a_lost_range_are_healed_before_the_scrub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The entry before the first entry that the views need cannot be read either."""
    monkeypatch.setattr("dledger.replica.upkeep.repair.SCRUB_IDLE_BYTES", 0)
    async with Group(tmp_path) as group:
        victim = await group.follower()
        snapshots = group.nodes[victim].replica.snapshots
        while not (taken := snapshots.list()) or taken[-1].position < 2 * SEGMENT_BYTES:
            await group.append(10)
        await group.settled()
        await group.stop(victim)
        lost = [meta for meta in group.metas(victim) if SEGMENT_BYTES * 3 // 2 < meta.position < SEGMENT_BYTES * 2]
        os.truncate(group.home(victim) / "commitlog" / f"{SEGMENT_BYTES:020d}", SEGMENT_BYTES // 2)
        machine = group.machines[victim] = Journal()
        machine.views_end = lost[len(lost) // 2].position
        node = group.nodes[victim] = Node(group.config(victim), machine)
        await node.start()
        await until(partial(healed, node, 1))
        await group.settled()
        assert machine.rebuilt[0] == lost[len(lost) // 2].index
    await group.ends_equal_and_whole()


@pytest.mark.parametrize("begins_at", [0, -1])
async def test_rot_below_the_applied_state_is_forgotten_once_the_peers_trimmed_it(tmp_path: Path, begins_at: int):
    """The rotten part is also forgotten if the others still have entries below the state's snapshot."""
    async with Group(tmp_path, reserve_bytes=1 << 20) as group:
        await group.append_until_trimmable(3)
        base = group.trim_candidates()[begins_at]
        victim = await group.follower()
        await group.stop(victim)
        damaged = next(meta for meta in group.metas(victim) if meta.position > base - SEGMENT_BYTES // 2)
        group.flip_bit(victim, damaged.position + HEADER_BYTES + 7)
        await group.trim(base)
        machine = group.machines[victim] = Journal()
        machine.views_end = damaged.position
        node = group.nodes[victim] = Node(group.config(victim), machine)
        await node.start()
        await group.append(5)
        await group.agrees()
        assert (node.first_position, node.status().corrupt_bytes) == (base, 0)
        assert machine.rebuilt == []
    await group.ends_equal_and_whole()


async def test_a_log_is_given_up_if_all_peers_trimmed_its_rotten_next_entry(tmp_path: Path):
    """The log holds all committed entries, so no leader sends a snapshot. No peer has the missing bytes."""
    async with Group(tmp_path, reserve_bytes=1 << 20) as group:
        await group.append_until_trimmable(1)
        await group.append(50)
        await group.settled()
        base = group.trim_candidates()[0]
        await group.stop("n2")
        for snapshot in (group.home("n2") / "snapshots").iterdir():
            snapshot.unlink()
        damaged = group.metas("n2")[20]
        group.flip_bit("n2", damaged.position + HEADER_BYTES + 7)
        await group.trim(base)

        await group.stop("n1")
        await group.start("n2")
        given_up = group.nodes["n2"]
        before = given_up.replica.me
        repairer = given_up.replica.repairer
        await until(lambda: repairer._number >= 3, "the one peer was asked twice in vain, and is asked once more")
        assert given_up.status().failure is None, "who is away may have it"
        await group.start("n1")
        async with asyncio.timeout(DEADLINE_S):
            failure = await given_up.wait_failed()
        assert isinstance(failure, ContradictionError)
        assert f"entry {damaged.index} is to be applied next" in str(failure)

        await group.stop("n2")
        await group.start("n2")
        await group.append(5)
        await group.settled()
        assert group.nodes["n2"].replica.me.incarnation != before.incarnation
        assert group.same_state()
    await group.ends_equal_and_whole()


async def stop_a_follower(group: Group) -> tuple[str, int]:
    """Stop a follower of a group with snapshots. Return its id and the position of its newest snapshot."""
    victim = await group.follower()
    await group.append_until_trimmable(3)
    await group.append(10)
    await group.settled()
    await group.stop(victim)
    return victim, max(int(path.name) for path in (group.home(victim) / "snapshots").iterdir())


async def comes_back_and_heals(group: Group, victim: str, machine: Journal) -> None:
    group.machines[victim] = machine
    node = group.nodes[victim] = Node(group.config(victim), machine)
    await node.start()
    await group.append(5)
    await group.agrees()
    await until(lambda: node.status().corrupt_bytes == 0, "everything is healed or forgotten")


@pytest.mark.parametrize("lost", [(0,), (-1,), (-1, 0), None], ids=["behind", "before", "both", "all"])
async def test_a_node_that_lost_the_segments_around_its_snapshot_starts_and_heals(
    tmp_path: Path, lost: tuple[int, ...] | None
):
    async with Group(tmp_path) as group:
        victim, base = await stop_a_follower(group)
        segments = group.home(victim) / "commitlog"
        starts = [int(path.name) for path in segments.glob("0*")]
        for start in starts if lost is None else [base + number * SEGMENT_BYTES for number in lost]:
            (segments / f"{start:020d}").unlink()
        await comes_back_and_heals(group, victim, Journal())
    await group.ends_equal_and_whole()


async def test_lost_segments_are_healed_if_the_peers_keep_them_and_forgotten_otherwise(tmp_path: Path):
    async with Group(tmp_path, reserve_bytes=1 << 20) as group:
        victim, base = await stop_a_follower(group)
        for start in (base - SEGMENT_BYTES, base):
            (group.home(victim) / "commitlog" / f"{start:020d}").unlink()
        await group.trim(base)
        machine = Journal()
        machine.views_end = base - SEGMENT_BYTES
        await comes_back_and_heals(group, victim, machine)
        assert group.nodes[victim].first_position == base
    await group.ends_equal_and_whole()


async def test_a_node_gets_another_snapshot_if_the_first_is_rotten_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(outbox, "COPY_WAIT_S", 0.0)  # no other replica has it, so waiting for one's copy is in vain
    async with Group(tmp_path) as group:
        late, _, position = await group.trim_without_a_follower()
        for node_id in {*group.ids} - {late}:
            with (group.home(node_id) / "snapshots" / f"{position:020d}").open("r+b") as file:
                file.seek(-30, os.SEEK_END)
                file.write(b"rot")
        await group.start(late)
        await group.settled()
        assert group.nodes[late].first_position > position
        assert group.same_state()
