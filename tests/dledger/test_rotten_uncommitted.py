"""A leader has an entry that nobody else has, and its bytes have rotted: somebody else has to lead."""

from random import Random

import pytest
from node_group import JournalService

from dledger.format import HEADER_BYTES
from dledger.store.segments import segment_path
from dledger_sim.log.group import GroupSettings, SimGroup, SimNode
from dledger_sim.log.scheduler import Scheduler


def until(scheduler: Scheduler, holds, seconds: float = 30.0) -> None:
    deadline = scheduler.now + seconds
    while not holds():
        assert scheduler.now < deadline, "it happens in time"
        scheduler.run_until(scheduler.now + 0.01)


def rotten_leader(scheduler: Scheduler, rotten: int) -> tuple[SimGroup, SimNode, int]:
    """A leader with one follower and two entries that nobody else has, one of which has rotted; the index of it."""
    group = SimGroup(scheduler, Random(5), GroupSettings(scrub_interval_ms=3_600_000), JournalService)
    for name in group.nodes:
        group.start(name)
    until(scheduler, lambda: group.leader is not None and group.leader.life.replica.is_ready)
    leader = group.leader
    others = [node for node in group.nodes.values() if node is not leader]
    for other in others:
        group.network.cut(leader.name, other.name)
    leader.life.replica.stage(400, lambda _: (bytes(400),))
    store = leader.life.replica.store
    index = store.last_index + 1
    until(scheduler, lambda: store.durable == index)
    leader.life.replica.stage(400, lambda _: (bytes(400),))
    until(scheduler, lambda: store.durable == index + 1)
    index += rotten
    meta = store.meta(index)
    for name in group.nodes:
        group.kill(name)
    group.network.heal()
    group.start(leader.name)
    leader.disk.flip_bit(segment_path(0), 8 * (meta.position + HEADER_BYTES + 100))
    group.start(others[0].name)
    until(scheduler, lambda: leader.life.replica.engine.is_leader)
    return group, leader, index


@pytest.mark.parametrize("rotten", [0, 1])
def test_a_leader_that_cannot_read_what_only_it_has_lets_another_lead(rotten: int):
    scheduler = Scheduler()
    group, leader, index = rotten_leader(scheduler, rotten)
    scheduler.run_until(scheduler.now + 3.0)
    assert leader.life.replica.engine.commit_index < index
    for name, node in group.nodes.items():
        if node.life is None:
            group.start(name)
    until(scheduler, lambda: group.leader is not None and group.leader.life.replica.engine.commit_index >= index)
    assert group.leader is not leader
    until(scheduler, lambda: leader.life.replica.applied_index == group.leader.life.replica.applied_index)
    assert leader.life.replica.repairer.corrupt_bytes == 0
