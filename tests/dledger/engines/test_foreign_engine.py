"""Replicas, links and nodes run on an engine of which they know nothing but the boundary."""

from pathlib import Path
from random import Random

import msgspec
import pytest
from foreign_engine import FOREIGN, ForeignEngine

from dledger import Node
from dledger.consensus.engine import EngineKind
from dledger.engines.native import NATIVE
from dledger.errors import IdentityError
from dledger.store.disk import OsDisk
from dledger.store.identity import read_identity, write_identity
from dledger.testing.engine_suite import messages
from dledger.testing.engine_suite.groups import Promise
from dledger_sim.log.faults import Trim
from dledger_sim.log.group import GroupSettings, SimGroup
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.workload import Workload, WorkloadSettings
from tests.dledger.node_group import Group, Journal, until


@pytest.mark.parametrize("promise", messages.PROMISES, ids=lambda promise: promise.__name__)
def test_its_messages_keep(promise: Promise) -> None:
    promise(FOREIGN)


def _history(engine: EngineKind) -> tuple[object, ...]:
    """What a group does, one of whose nodes comes back when the log is trimmed beyond what it has."""
    settings = GroupSettings(snapshot_interval_ms=0)
    group = SimGroup(Scheduler(), Random(3), settings, serve_registers, engine=engine)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    workload = Workload(group, Random(4), WorkloadSettings(padding_bytes=4000))
    workload.start()
    leader = group.leader
    assert leader is not None
    assert leader.replica is not None
    late = next(node for node in group.nodes.values() if node is not leader)
    assert late.replica is not None
    last = late.replica.store.last_index
    group.kill(late.name)
    while leader.replica.store.first_index <= last:
        group.scheduler.run_until(group.scheduler.now + 0.5)
        Trim(0.99).inject(group)
        assert group.scheduler.now < 60.0
    group.start(late.name)
    workload.stop()
    while not group.healthy():
        group.scheduler.run_until(group.scheduler.now + 0.5)
        assert group.scheduler.now < 120.0
    assert late.replica.store.first_index > last, "a snapshot replaced its log"
    replicas = [node.replica for node in group.nodes.values() if node.replica is not None]
    assert all(isinstance(replica.engine, ForeignEngine) for replica in replicas) is (engine is FOREIGN)
    return group.scheduler.now, [
        (replica.engine.term, replica.engine.commit_index, replica.store.last_index, replica.store.last_chain)
        for replica in replicas
    ]


def test_a_simulated_group_does_with_it_what_it_does_with_the_native_engine() -> None:
    assert _history(FOREIGN) == _history(NATIVE)


async def test_nodes_replicate_and_fail_over_with_it(tmp_path: Path) -> None:
    group = Group(tmp_path, engine=FOREIGN)
    try:
        await group.start()
        await group.append(20)
        leader = await group.leader()
        assert isinstance(leader.replica.engine, ForeignEngine)
        await group.stop(leader.config.node_id)
        await group.append(20)
        await group.start(leader.config.node_id)
        await group.settled()
        assert {machine.count for machine in group.machines.values()} == {40}
    finally:
        await group.stop()


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


async def test_a_node_of_another_engine_gets_no_link(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = Group(tmp_path, engine=FOREIGN)
    identity = read_identity(OsDisk(str(group.home("n2"))))
    assert identity is not None
    write_identity(OsDisk(str(group.home("n2"))), msgspec.structs.replace(identity, engine="native"))
    try:
        await group.start("n0", "n1")
        group.engine = NATIVE
        await group.start("n2")
        await group.append(5)
        for name, other in (("n0", "engine 'native' found, 'foreign' expected"), ("n2", "'foreign' found, 'native'")):
            await until(lambda name=name, other=other: _is_said(caplog, name, other), other)
        await until(lambda: group.machines["n0"].count == group.machines["n1"].count == 5, "all entries on both")
        assert group.machines["n2"].count == 0
    finally:
        await group.stop()


def _is_said(caplog: pytest.LogCaptureFixture, name: str, text: str) -> bool:
    said = [record.getMessage() for record in caplog.records]
    return any(f"node={name} " in one and text in one for one in said)
