"""One seed from start to verdict: trouble, then healing, then proof that the group is whole."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from dledger.sim.group import GroupSettings, Life, SimGroup, SimNode
from dledger.sim.invariants import Violation, require
from dledger.sim.nemesis import KINDS, Nemesis
from dledger.sim.scheduler import Scheduler
from dledger.sim.workload import Workload, WorkloadSettings

CONVERGE_S = 60.0
OPERATOR_S = 15.0
STEP_S = 0.25
DEFAULT_SECONDS = 20.0


@dataclass(slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    seconds: float = 0.0
    events: int = 0
    committed: int = 0
    ok: int = 0
    failed: int = 0
    unknown: int = 0
    reads: int = 0
    terms: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    """Rare things that came of the faults (see `Witness.happened`)."""
    violation: Violation | None = None
    place: str = ""
    """Where in the code, if an exception revealed it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed makes of a run: every seed has its own mixture of faults."""

    group: GroupSettings
    workload: WorkloadSettings
    kinds: dict[str, float]
    interval_s: float
    most_at_once: int
    trim_s: float
    sync_s: float


def draw_plan(random: Random) -> Plan:
    """Swarm testing: a few kinds of faults at a time find more than all of them always."""
    nodes, founders = random.choices(((3, 3), (5, 5), (3, 1)), (8, 1, 1))[0]
    group = GroupSettings(
        nodes,
        founders,
        snapshot_interval_ms=random.choice((100, 300, 2000)),
        recent_bytes=random.choice((4 << 10, 48 << 10, 1 << 20)),
        sizes_window=random.choice((4, 64, 4096)),
        state_padding_bytes=random.choice((0, 0, 0, 20 << 10, 600 << 10)),
        call_cost_s=random.choice((0.0, 0.0, 0.0, 0.0005)),
        clock_drift=random.choice((0.0, 0.01, 0.05)),
    )
    workload = WorkloadSettings(
        clients=random.choice((1, 3, 6)),
        think_s=random.choice((0.02, 0.05, 0.15)),
        timeout_s=random.choice((0.3, 1.5)),
        keys=random.choice((1, 8)),
        read_share=random.choice((0.1, 0.4)),
        padding_bytes=random.choice((100, 800, 4000)),
        large_share=random.choice((0.0, 0.01, 0.05)),
    )
    chosen = random.sample(sorted(KINDS), random.randint(2, 8))
    kinds = {kind: random.uniform(0.2, 1.0) for kind in chosen}
    return Plan(
        group,
        workload,
        kinds,
        interval_s=random.choice((0.15, 0.4, 1.0)),
        most_at_once=random.choice((1, 2, 4)),
        trim_s=random.choice((0.3, 1.0, 4.0)),
        sync_s=random.choice((0.0003, 0.002, 0.01)),
    )


def simulate(seed: int, seconds: float = DEFAULT_SECONDS, *, trace: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed; a broken promise ends it and stands in the outcome."""
    random = Random(seed)
    plan = draw_plan(random)
    scheduler = Scheduler()
    group = SimGroup(scheduler, Random(random.getrandbits(64)), plan.group)
    group.trace = trace
    workload = Workload(group, Random(random.getrandbits(64)), plan.workload)
    nemesis = Nemesis(
        group,
        Random(random.getrandbits(64)),
        kinds=plan.kinds,
        interval_s=plan.interval_s,
        most_at_once=plan.most_at_once,
        trim_s=plan.trim_s,
    )
    outcome = Outcome(seed, injected=nemesis.injected, happened=group.witness.happened)
    for node in group.nodes.values():
        node.sync_delay_s = plan.sync_s
    if trace is not None:
        trace(f"{plan}")
    try:
        for name in group.nodes:
            group.start(name)
        scheduler.run_until(1.0)
        workload.start()
        nemesis.start()
        scheduler.run_until(1.0 + seconds)
        workload.stop()
        nemesis.heal_all()
        _converge(group)
        _serve(group, workload)
        _compare(group)
    except Violation as violation:
        outcome.violation = violation
        if violation.__cause__ is not None:
            outcome.place = "".join(traceback.format_exception(violation.__cause__))
    except Exception as error:
        outcome.violation = Violation("nothing but a broken promise ends a run", repr(error))
        outcome.place = traceback.format_exc()
    outcome.seconds = scheduler.now
    outcome.events = scheduler.events
    outcome.committed = len(group.witness.committed)
    outcome.ok, outcome.failed = workload.ok, workload.failed
    outcome.unknown, outcome.reads = workload.unknown, workload.reads
    outcome.terms = len(group.witness.leaders)
    return outcome


def _converge(group: SimGroup) -> None:
    """Wait until everybody is a voter again and has everything."""
    scheduler = group.scheduler
    deadline = scheduler.now + CONVERGE_S
    operator_at = scheduler.now + OPERATOR_S
    while not group.healthy():
        if scheduler.now >= operator_at:
            _replace_rotten(group)
        if scheduler.now >= deadline:
            states = "; ".join(_describe(node) for node in group.nodes.values())
            raise Violation(f"a healed group is whole within {CONVERGE_S:g} s", states)
        scheduler.run_until(scheduler.now + STEP_S)


def _replace_rotten(group: SimGroup) -> None:
    """What an operator does with a node whose files rotted where nobody has the bytes any more: give it empty ones."""
    for node in group.nodes.values():
        if node.rotten and (node.life is None or node.life.replica.store.corrupt_ranges):
            group.say(f"{node.name} is given an empty directory")
            group.wipe(node.name)
            group.start(node.name)


def _describe(node: SimNode) -> str:
    replica = node.replica
    if replica is None:
        return f"{node.name} is down"
    status = replica.status()
    return (
        f"{node.name} {status.role} of term {status.term} (ready {status.ready}): last {status.last_index},"
        f" commit {status.commit_index}, applied {status.applied_index}, durable {replica.store.durable},"
        f" voters {status.voters}, learners {status.learners},"
        f" peers {[(peer.node_id, peer.mode, peer.match_index) for peer in status.peers]}"
    )


def _serve(group: SimGroup, workload: Workload) -> None:
    """A write and a read succeed."""
    outcomes: list[str] = []

    def done(outcome: str, hint: str | None) -> None:
        _ = hint
        outcomes.append(outcome)

    life = _leading(group)
    life.environment.call_soon(lambda: workload.write(life, 0, 10, done))
    group.scheduler.run_until(group.scheduler.now + 1.0)
    require(outcomes == ["ok"], "a whole group takes a write", outcomes=outcomes)
    life = _leading(group)
    life.environment.call_soon(lambda: workload.read(life, 0, done))
    group.scheduler.run_until(group.scheduler.now + 1.0)
    require(outcomes == ["ok", "ok"], "a whole group answers a read", outcomes=outcomes)


def _leading(group: SimGroup) -> Life:
    leader = group.leader
    require(leader is not None and leader.life is not None, "a whole group has a leader")
    assert leader is not None
    assert leader.life is not None
    return leader.life


def _compare(group: SimGroup) -> None:
    """The kept bytes of all replicas are equal, blanks included, and so are their states."""
    _converge(group)
    replicas = [node.life.replica for node in group.nodes.values() if node.life is not None]
    first = max(replica.store.first_position for replica in replicas)
    end = replicas[0].store.end_position
    size = group.settings.segment_bytes
    for start in range(first, end, size):
        length = min(size, end - start)
        contents = {replica.store.read(start, length) for replica in replicas if not replica.store.corrupt_ranges}
        require(len(contents) <= 1, "the committed bytes of all replicas are equal", segment=start)
    states = {life.machine.digest() for node in group.nodes.values() if (life := node.life) is not None}
    require(len(states) == 1, "the states of all replicas are equal", digests=states)
