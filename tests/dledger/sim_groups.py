"""Simulated groups of several tests."""

from random import Random

from dledger.consensus.engine import EngineKind
from dledger.engines.named import NATIVE
from dledger_sim.log.faults import Trim
from dledger_sim.log.group import GroupSettings, SimGroup, SimNode
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.workload import Workload, WorkloadSettings


def started(
    settings: GroupSettings | None = None, service=serve_registers, *, seed: int = 1, engine: EngineKind = NATIVE
) -> SimGroup:
    """Start a group, and give it three seconds to elect a leader."""
    group = SimGroup(Scheduler(), Random(seed), settings or GroupSettings(), service, engine=engine)
    for name in group.nodes:
        group.start(name)
    run(group, 3.0)
    return group


def run(group: SimGroup, seconds: float) -> None:
    group.scheduler.run_until(group.scheduler.now + seconds)


def run_until(group: SimGroup, holds, step_s: float = 0.01, seconds: float = 120.0) -> None:
    deadline = group.scheduler.now + seconds
    while not holds():
        assert group.scheduler.now < deadline, "it happens in time"
        run(group, step_s)


def trimmed_beyond_a_node(engine: EngineKind = NATIVE) -> tuple[SimGroup, SimNode, Workload]:
    """Return a group under load that has trimmed all entries of a killed node, and that node."""
    group = started(GroupSettings(snapshot_interval_ms=0), seed=3, engine=engine)
    workload = Workload(group, Random(4), WorkloadSettings(padding_bytes=4000))
    workload.start()
    leader = group.leader
    late = next(node for node in group.nodes.values() if node is not leader)
    last = late.replica.store.last_index
    group.kill(late.name)
    while leader.replica.store.first_index <= last:
        run(group, 0.5)
        Trim(0.99).inject(group)
        assert group.scheduler.now < 60.0
    return group, late, workload
