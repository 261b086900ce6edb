"""A leader has an entry that no other node has, and its bytes have rotted. Another node must lead."""

import pytest
from node_group import JournalService
from sim_groups import run, run_until, started

from dledger.format import HEADER_BYTES
from dledger.store.segments import segment_path
from dledger_sim.log.group import GroupSettings, SimGroup, SimNode


def rotten_leader(rotten: int) -> tuple[SimGroup, SimNode, int]:
    """Return a leader with a follower and two entries that only the leader has.

    Also return the index of the entry that has rotted.
    """
    group = started(GroupSettings(scrub_interval_ms=3_600_000), JournalService, seed=5)
    run_until(group, lambda: group.leader is not None and group.leader.life.replica.is_ready)
    leader = group.leader
    others = [node for node in group.nodes.values() if node is not leader]
    for other in others:
        group.network.cut(leader.name, other.name)
    leader.life.replica.stage(400, lambda _: (bytes(400),))
    store = leader.life.replica.store
    index = store.last_index + 1
    run_until(group, lambda: store.durable == index)
    leader.life.replica.stage(400, lambda _: (bytes(400),))
    run_until(group, lambda: store.durable == index + 1)
    index += rotten
    meta = store.meta(index)
    for name in group.nodes:
        group.kill(name)
    group.network.heal()
    group.start(leader.name)
    leader.disk.flip_bit(segment_path(0), 8 * (meta.position + HEADER_BYTES + 100))
    group.start(others[0].name)
    run_until(group, lambda: leader.life.replica.engine.is_leader)
    return group, leader, index


@pytest.mark.parametrize("rotten", [0, 1])
def test_a_leader_that_cannot_read_its_uncommitted_entry_is_replaced(rotten: int):
    group, leader, index = rotten_leader(rotten)
    run(group, 3.0)
    assert leader.life.replica.engine.commit_index < index
    for name, node in group.nodes.items():
        if node.life is None:
            group.start(name)
    run_until(group, lambda: group.leader is not None and group.leader.life.replica.engine.commit_index >= index)
    assert group.leader is not leader
    run_until(group, lambda: leader.life.replica.applied_index == group.leader.life.replica.applied_index)
    assert leader.life.replica.repairer.corrupt_bytes == 0
