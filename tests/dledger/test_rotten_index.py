"""One bit of an older segment's index file rots. The log's own content counts."""

import shutil

import pytest
from node_group import SEGMENT_BYTES, Group, Journal, until

from dledger import Node
from dledger.store.index import UNIT_BYTES
from dledger.types import EntryMeta

FIELD_ENDS = {"magic": 4, "position": 12, "size": 16, "index": 24, "term": 32}
"""End of each field in an index unit, in bytes. See `dledger.store.index`."""


GROUP_OPTIONS = {"reserve_bytes": 1 << 20}


async def stop_a_follower(group: Group) -> str:
    """Stop a follower of a group with two closed segments and snapshots behind them, and return its id."""
    await group.append_until_trimmable(2)
    await group.append(10)
    await group.settled()
    leader = await group.leader()
    victim = next(node_id for node_id in group.nodes if group.nodes[node_id] is not leader)
    await group.stop(victim)
    return victim


def in_segment(group: Group, node_id: str, start: int) -> list[EntryMeta]:
    return [meta for meta in group.metas(node_id) if start <= meta.position < start + SEGMENT_BYTES]


def flip_bit_of_unit(group: Group, node_id: str, metas: list[EntryMeta], at: int, field: str, bit: int) -> None:
    """Flip one bit, counted from the lowest, of the unit of `metas[at]`. `metas` are the entries of the segment."""
    path = group.home(node_id) / "index" / f"{metas[0].position:020d}"
    raw = bytearray(path.read_bytes())
    raw[at * UNIT_BYTES + FIELD_ENDS[field] - 1 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


async def start_with_views_that_end_at(group: Group, node_id: str, position: int) -> Journal:
    machine = group.machines[node_id] = Journal()
    machine.views_end = position
    node = Node(group.config(node_id), machine)
    await node.start()
    group.nodes[node_id] = node
    return machine


async def lead_with_a_rotten_term(group: Group, node_id: str) -> Node:
    """Start a node whose index file has a rotten term where recovery looks first, and make it the leader."""
    metas = in_segment(group, node_id, 0)
    flip_bit_of_unit(group, node_id, metas, (1 + len(metas)) // 2, "term", 52)
    await group.start(node_id)
    await group.settled()
    node = group.nodes[node_id]
    while not node.is_ready:
        await (await group.leader()).transfer_leadership(node_id)
        await group.settled()
    return node


async def is_brought_up_to_date(node: Node, leader: Node) -> None:
    await until(lambda: node.applied_index >= leader.applied_index or node.status().failure is not None)
    assert node.status().failure is None


async def test_a_rotten_term_at_the_leader_does_not_cost_a_follower_that_lags_its_log(group: Group):
    leader = await group.start_with(10)
    late = next(node_id for node_id in group.ids if group.nodes[node_id] is not leader)
    await group.stop(late)
    incarnation = leader.membership.find(late)
    leader = await lead_with_a_rotten_term(group, await stop_a_follower(group))
    await group.start(late)
    await is_brought_up_to_date(group.nodes[late], leader)
    assert leader.membership.find(late) == incarnation
    assert not (group.home(late) / "aside-0").exists()


async def test_a_rotten_term_at_the_leader_does_not_keep_a_wiped_node_from_joining(
    group: Group, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.replica.upkeep.members.REPLACE_AFTER_S", 1.0)
    await group.start()
    victim = await stop_a_follower(group)
    leader = await lead_with_a_rotten_term(group, victim)
    late = next(node_id for node_id in group.ids if group.nodes[node_id] is not leader)
    await group.stop(late)
    shutil.rmtree(group.home(late))
    await group.start(late)
    await is_brought_up_to_date(group.nodes[late], leader)


async def test_views_are_rebuilt_from_their_end_despite_a_rotten_position(group: Group):
    await group.start()
    victim = await stop_a_follower(group)
    metas = in_segment(group, victim, 0)
    at = len(metas) // 2
    bit = metas[at].position.bit_length() - 1
    wrong = metas[at].position ^ 1 << bit
    last = next(meta for meta in metas if meta.end > wrong)
    assert last.index + 1 < metas[at].index
    flip_bit_of_unit(group, victim, metas, at, "position", bit)
    machine = await start_with_views_that_end_at(group, victim, last.end)
    await group.append(5)
    await group.settled()
    assert machine.rebuilt[0] <= last.index + 1


@pytest.mark.parametrize("views", ["lag a little", "were deleted"])
async def test_a_node_starts_although_its_views_end_in_a_segment_with_a_rotten_unit(group: Group, views: str):
    await group.start()
    victim = await stop_a_follower(group)
    position = max(int(path.name) for path in (group.home(victim) / "snapshots").iterdir())
    views_end = position - SEGMENT_BYTES // 8 if views == "lag a little" else 0
    metas = in_segment(group, victim, views_end - views_end % SEGMENT_BYTES)
    flip_bit_of_unit(group, victim, metas, len(metas) // 2, "magic", 20)
    await start_with_views_that_end_at(group, victim, views_end)
    await group.append(5)
    await group.settled()
