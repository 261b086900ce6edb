"""Bit rot below the durable mark is found, not served, and healed with a peer's bytes."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from node_group import DEADLINE_S, SEGMENT_BYTES, Group, Journal, has_trimmed, until

from dledger import Node
from dledger.errors import ContradictionError, CorruptionError
from dledger.format import HEADER_BYTES
from dledger.store.verify import compare


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path, snapshot_interval_ms=3_600_000)
    yield group
    await group.stop()


def healed(node: Node, count: int) -> bool:
    return node.status().repairs == count and node.status().corrupt_bytes == 0


def assert_equal_and_whole(group: Group) -> None:
    reports = group.verified()
    assert [report.problems for report in reports] == [[], [], []]
    assert compare(reports).equal


async def test_a_restarted_node_heals_a_body_and_a_header(group: Group, caplog: pytest.LogCaptureFixture):
    await group.start()
    await group.append(150)
    await group.settled()
    victim = next(node_id for node_id, node in group.nodes.items() if not node.is_ready)
    await group.stop(victim)
    metas = group.metas(victim)
    group.flip_bit(victim, metas[20].position + HEADER_BYTES + 7)
    group.flip_bit(victim, metas[90].position + 13)
    with caplog.at_level(logging.ERROR, "dledger.replica.repair"):
        await group.start(victim)
        await until(partial(healed, group.nodes[victim], 2))
    said = [record.getMessage() for record in caplog.records if "event=corruption" in record.getMessage()]
    assert len(said) == 2
    assert any(f"start={metas[20].position} end={metas[20].end}" in line for line in said)
    await group.settled()
    assert group.same_state()
    await group.stop()
    assert_equal_and_whole(group)


async def test_the_scrub_finds_what_rots_while_a_node_runs(group: Group):
    await group.start(scrub_interval_ms=0)
    await group.append(150)
    await group.settled()
    leader = await group.leader()
    victim = leader.config.node_id
    meta = group.metas(victim)[30]
    group.flip_bit(victim, meta.end - 1)
    await until(partial(healed, leader, 1))
    assert (await leader.read(meta.position, meta.size))[-1] == (await leader.read(meta.position, meta.size))[-2]
    await group.stop()
    assert_equal_and_whole(group)


async def test_two_nodes_heal_each_other_without_a_third(group: Group):
    await group.start()
    await group.append(150)
    await group.settled()
    await group.stop()
    metas = group.metas("n0")
    group.flip_bit("n0", metas[10].position + 60)
    group.flip_bit("n1", metas[100].position + 60)
    await group.start("n0", "n1")
    await until(lambda: all(healed(node, 1) for node in group.nodes.values()))
    await group.settled()
    assert group.same_state()
    await group.start("n2")
    await group.settled()
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_range_is_not_served_and_nothing_crashes_while_nobody_can_heal_it(group: Group):
    await group.start()
    await group.append(150)
    await group.settled()
    await group.stop()
    bad = group.metas("n0")[10]
    for node_id in ("n0", "n1"):
        group.flip_bit(node_id, bad.position + 60)
    await group.start("n0", "n1")
    await until(lambda: all(node.status().corrupt_bytes == bad.size for node in group.nodes.values()))
    for node in group.nodes.values():
        with pytest.raises(CorruptionError, match="read another one's"):
            await node.read(bad.position, bad.size)
        assert await node.read(0, bad.position)
        assert node.status().voter
        assert node.status().failure is None
    await until(lambda: any(node.role == "leader" for node in group.nodes.values()))
    assert not group.leaders, "nobody can apply the log up to its own no-op"
    await group.start("n2")
    await until(lambda: healed(group.nodes["n0"], 1) and healed(group.nodes["n1"], 1))
    await group.append(5)
    await group.settled()
    assert group.same_state()
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_whole_lost_stretch_comes_back(group: Group):
    """Headers and index are gone: the range runs to the segment's end, over many pieces."""
    await group.start()
    await group.append(150)
    await group.settled()
    await group.stop("n1")
    start = SEGMENT_BYTES
    segment = group.home("n1") / "commitlog" / f"{start:020d}"
    segment.write_bytes(bytes(segment.stat().st_size))
    (group.home("n1") / "index" / f"{start:020d}").unlink()
    await group.start("n1")
    await until(partial(healed, group.nodes["n1"], 1))
    await group.settled()
    assert group.same_state()
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_leader_that_finds_rot_while_a_follower_catches_up_heals_and_sends(group: Group):
    await group.start("n0", "n1", recent_bytes=0)
    await group.append(150)
    await group.settled()
    leader = await group.leader()
    group.flip_bit(leader.config.node_id, group.metas(leader.config.node_id)[50].position + 60)
    await group.start("n2", recent_bytes=0)
    await until(lambda: group.nodes["n2"].applied_index == leader.applied_index)
    assert healed(leader, 1)
    await group.stop()
    assert_equal_and_whole(group)


async def test_rot_that_passed_for_intact_is_found_because_right_bytes_do_not_join_it(group: Group):
    """Behind a corrupt entry the chain is unknown: the next one's rotten chain crc blames the one after it."""
    await group.start()
    await group.append(150)
    await group.settled()
    await group.stop("n1")
    metas = group.metas("n1")
    chain_crc = 36
    for index in (40, 41):
        group.flip_bit("n1", metas[index].position + chain_crc)
    await group.start("n1")
    await until(lambda: group.nodes["n1"].status().repairs > 0 and not group.nodes["n1"].status().corrupt_bytes)
    await group.settled()
    await group.stop()
    assert_equal_and_whole(group)


async def test_a_membership_entry_that_rotted_is_learned_when_it_is_healed(group: Group):
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
    monkeypatch.setattr("dledger.replica.repair.SCRUB_IDLE_BYTES", 0)
    await group.start()
    await group.append(150)
    await group.settled()
    node = next(node for node in group.nodes.values() if not node.is_ready)
    victim = node.config.node_id
    lost = [meta for meta in group.metas(victim) if SEGMENT_BYTES * 3 // 2 < meta.position < SEGMENT_BYTES * 2]
    os.truncate(group.home(victim) / "commitlog" / f"{SEGMENT_BYTES:020d}", SEGMENT_BYTES // 2)
    with pytest.raises(CorruptionError, match="inside the log"):
        await node.read(lost[-1].position, lost[-1].size)
    await until(partial(healed, node, 1))
    assert len(await node.read(lost[-1].position, lost[-1].size)) == lost[-1].size
    await group.stop()
    assert_equal_and_whole(group)


async def test_views_that_stand_inside_a_lost_stretch_have_it_healed_without_waiting_for_the_scrub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The entry before the one that they need next cannot be read, either."""
    monkeypatch.setattr("dledger.replica.repair.SCRUB_IDLE_BYTES", 0)
    group = Group(tmp_path)
    await group.start()
    try:
        leader = await group.leader()
        victim = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
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
    finally:
        await group.stop()
    assert_equal_and_whole(group)


@pytest.mark.parametrize("begins_at", [0, -1])
async def test_what_rots_below_the_state_and_is_trimmed_by_the_others_is_forgotten(tmp_path: Path, begins_at: int):
    """Also where the others still have what lies below the snapshot that the state came from."""
    group = Group(tmp_path, reserve_bytes=1 << 20)
    await group.start()
    leader = await group.leader()
    victim, other = (node_id for node_id in group.ids if node_id != leader.config.node_id)
    await group.append_until_trimmable(3)
    base = group.trim_candidates()[begins_at]
    await group.stop(victim)
    try:
        damaged = next(meta for meta in group.metas(victim) if meta.position > base - SEGMENT_BYTES // 2)
        group.flip_bit(victim, damaged.position + HEADER_BYTES + 7)
        assert (await group.leader()).trim(base)
        kept = (group.nodes[leader.config.node_id], group.nodes[other])
        await until(lambda: all(has_trimmed(node, base) for node in kept), "the others have trimmed")
        machine = group.machines[victim] = Journal()
        machine.views_end = damaged.position
        node = group.nodes[victim] = Node(group.config(victim), machine)
        await node.start()
        await group.append(5)
        await group.settled()
        assert (node.first_position, node.status().corrupt_bytes) == (base, 0)
        assert machine.rebuilt == []
        assert group.same_state()
    finally:
        await group.stop()
    assert_equal_and_whole(group)


async def test_a_log_whose_next_entry_rotted_is_given_up_once_every_other_voter_has_trimmed_it(tmp_path: Path):
    """It holds all that is committed: no leader sends it a snapshot, and no peer has the bytes that it lacks."""
    group = Group(tmp_path, reserve_bytes=1 << 20)
    await group.start()
    try:
        await group.append_until_trimmable(1)
        await group.append(50)
        await group.settled()
        base = group.trim_candidates()[0]
        await group.stop("n2")
        for snapshot in (group.home("n2") / "snapshots").iterdir():
            snapshot.unlink()
        damaged = group.metas("n2")[20]
        group.flip_bit("n2", damaged.position + HEADER_BYTES + 7)
        assert (await group.leader()).trim(base)
        await until(lambda: all(has_trimmed(node, base) for node in group.nodes.values()), "the others have trimmed")

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
    finally:
        await group.stop()
    assert_equal_and_whole(group)


async def stop_a_follower(group: Group) -> tuple[str, int]:
    """Of a group with snapshots; returns where its newest one stands, too."""
    await group.start()
    leader = await group.leader()
    victim = next(node_id for node_id in group.ids if node_id != leader.config.node_id)
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
    await group.settled()
    await until(lambda: node.status().corrupt_bytes == 0, "everything is healed or forgotten")
    assert group.same_state()


@pytest.mark.parametrize("lost", [(0,), (-1,), (-1, 0), None], ids=["behind", "before", "both", "all"])
async def test_a_node_that_lost_the_segments_around_its_snapshot_starts_and_heals(
    tmp_path: Path, lost: tuple[int, ...] | None
):
    group = Group(tmp_path)
    try:
        victim, base = await stop_a_follower(group)
        segments = group.home(victim) / "commitlog"
        starts = [int(path.name) for path in segments.glob("0*")]
        for start in starts if lost is None else [base + number * SEGMENT_BYTES for number in lost]:
            (segments / f"{start:020d}").unlink()
        await comes_back_and_heals(group, victim, Journal())
    finally:
        await group.stop()
    assert_equal_and_whole(group)


async def test_of_segments_lost_around_a_snapshot_what_the_others_keep_is_healed_and_what_they_trimmed_is_forgotten(
    tmp_path: Path,
):
    group = Group(tmp_path, reserve_bytes=1 << 20)
    try:
        victim, base = await stop_a_follower(group)
        for start in (base - SEGMENT_BYTES, base):
            (group.home(victim) / "commitlog" / f"{start:020d}").unlink()
        assert (await group.leader()).trim(base)
        await until(lambda: all(has_trimmed(node, base) for node in group.nodes.values()), "the others have trimmed")
        machine = Journal()
        machine.views_end = base - SEGMENT_BYTES
        await comes_back_and_heals(group, victim, machine)
        assert group.nodes[victim].first_position == base
    finally:
        await group.stop()
    assert_equal_and_whole(group)


async def test_a_node_that_needs_a_snapshot_gets_another_one_if_the_leaders_first_has_rotted(tmp_path: Path):
    group = Group(tmp_path)
    try:
        await group.start()
        await group.append(10)
        await group.settled()
        leader = await group.leader()
        late = next(node_id for node_id in group.ids if group.nodes[node_id] is not leader)
        await group.stop(late)
        await group.append_until_trimmable(2)
        position = group.trim_candidates()[0]
        leader = await group.leader()
        assert leader.trim(position)
        await until(lambda: has_trimmed(leader, position), "a trim")
        with (group.home(leader.config.node_id) / "snapshots" / f"{position:020d}").open("r+b") as file:
            file.seek(-30, os.SEEK_END)
            file.write(b"rot")
        await group.start(late)
        await group.settled()
        assert group.nodes[late].first_position > position
        assert group.same_state()
    finally:
        await group.stop()
