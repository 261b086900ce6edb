"""Replicas, links and nodes run on an engine of which they know only the boundary."""

from pathlib import Path

import pytest
from foreign_engine import FOREIGN, ForeignEngine

from dledger import Node
from dledger.consensus.engine import EngineKind
from dledger.engines.named import NATIVE
from dledger.errors import IdentityError
from dledger_sim.engine_suite import messages
from dledger_sim.engine_suite.groups import Promise
from tests.dledger.node_group import Group, Journal
from tests.dledger.sim_groups import run_until, trimmed_beyond_a_node


@pytest.mark.parametrize("promise", messages.PROMISES, ids=lambda promise: promise.__name__)
def test_the_foreign_engine_keeps(promise: Promise) -> None:
    promise(FOREIGN)


def _history(engine: EngineKind) -> tuple[object, ...]:
    """Return the outcome of a run in which a node comes back after the log was trimmed beyond its last entry."""
    group, late, workload = trimmed_beyond_a_node(engine)
    group.start(late.name)
    workload.stop()
    run_until(group, group.healthy)
    assert late.replica.store.first_position > 0, "a snapshot replaced its log"
    replicas = [node.replica for node in group.nodes.values() if node.replica is not None]
    assert all(isinstance(replica.engine, ForeignEngine) for replica in replicas) is (engine is FOREIGN)
    return group.scheduler.now, [
        (replica.engine.term, replica.engine.commit_index, replica.store.last_index, replica.store.last_chain)
        for replica in replicas
    ]


def test_a_simulated_group_behaves_alike_with_foreign_and_native_engine() -> None:
    assert _history(FOREIGN) == _history(NATIVE)


async def test_nodes_replicate_and_fail_over_with_a_foreign_engine(tmp_path: Path) -> None:
    async with Group(tmp_path, engine=FOREIGN) as group:
        await group.append(20)
        leader = await group.leader()
        assert isinstance(leader.replica.engine, ForeignEngine)
        await group.stop(leader.config.node_id)
        await group.append(20)
        await group.start(leader.config.node_id)
        await group.settled()
        assert {machine.count for machine in group.machines.values()} == {40}


async def test_a_directory_of_another_engine_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    group = Group(tmp_path, count=1, engine=FOREIGN)
    await group.start()
    await group.append(1)
    await group.stop()
    before = (group.home("n0") / "identity.json").read_bytes()
    with pytest.raises(IdentityError, match="engine 'foreign', this node runs engine 'native'"):
        async with Node(group.config("n0"), Journal()):
            pass
    assert (group.home("n0") / "identity.json").read_bytes() == before
    await group.start()
    await group.append(1)
    await group.stop()
