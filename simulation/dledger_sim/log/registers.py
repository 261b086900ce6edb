"""Scenario of the log alone: clients write and read registers and talk to replicas directly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random

from dledger_sim.log.cases import Limits
from dledger_sim.log.group import Life, SimGroup
from dledger_sim.log.invariants import Witness, require
from dledger_sim.log.machine import RegisterMachine
from dledger_sim.log.plan import Plan
from dledger_sim.log.workload import Workload, WorkloadSettings

CHUNKS = 20
"""Approximate number of chunks of a snapshot. It is larger than the number that may wait for the receiver's disk."""
SPACE_NOTICED_S = 5.0
ANSWER_S = 3.0
"""Time limit for an answer, in seconds.

A write may wait more than once for a stalled worker, and behind another write.
"""
"""`SPACE_NOTICED_S` is the maximum time for which a leader still refuses writes after disks were full, in seconds."""


class RegisterService:
    """Service of one life: registers."""

    def __init__(self, life: Life, witness: Witness, padding_bytes: int) -> None:
        self._life = life
        self._padding_bytes = padding_bytes
        self.machine = RegisterMachine(padding_bytes, witness.applying(life.replica_id))

    def start(self) -> None:
        """Set the size of the snapshot's chunks."""
        self._life.replica.snapshots.chunk_bytes = 1 + self._padding_bytes // CHUNKS

    def stop(self, done: Callable[[], None]) -> None:
        """Stop at once."""
        done()

    def leave(self) -> None:
        """Do nothing: no client waits here."""

    def rot_rows(self, where: float, how: str) -> bool:
        """Return False: registers have no views."""
        _ = where, how
        return False

    def trim(self, position: int) -> None:
        """Propose a trim to a snapshot's position."""
        self._life.replica.propose_trim(position)


def serve_registers(group: SimGroup, life: Life) -> RegisterService:
    """Return the service of a life without clients of its own."""
    return RegisterService(life, group.witness, 0)


class RegisterTrial:
    """Clients of one seed. `padding_bytes` make snapshots large."""

    def __init__(self, random: Random, settings: WorkloadSettings, padding_bytes: int, operations: int | None) -> None:
        self._random = random
        self._settings = settings
        self._padding_bytes = padding_bytes
        self._operations = operations
        self._workload: Workload | None = None

    @property
    def workload(self) -> Workload:
        assert self._workload is not None
        return self._workload

    @property
    def counts(self) -> Counter[str]:
        """Number of operations by outcome."""
        return Counter() if self._workload is None else self._workload.counts

    def serve(self, group: SimGroup, life: Life) -> RegisterService:
        """Return the service of a new life of a node."""
        return RegisterService(life, group.witness, self._padding_bytes)

    def start(self, group: SimGroup) -> None:
        """Start the clients."""
        self._workload = Workload(group, self._random, self._settings, self._operations)
        self._workload.start()

    def stop(self) -> None:
        """Stop the clients: no operation begins any more."""
        self.workload.stop()

    def judge(self, group: SimGroup) -> None:
        """Check that a write and a read succeed."""
        workload = self.workload
        deadline = group.scheduler.now + SPACE_NOTICED_S
        outcomes = _outcomes(group, lambda life, done: workload.write(life, 0, 10, done))
        # A leader that hands over just then answers `info`. A leader whose disk was slow does so.
        while outcomes in (["fail"], ["info"]) and group.scheduler.now < deadline:
            outcomes = _outcomes(group, lambda life, done: workload.write(life, 0, 10, done))
        require(outcomes == ["ok"], "a healed group accepts a write", outcomes=outcomes)
        outcomes = _outcomes(group, lambda life, done: workload.read(life, 0, done))
        require(outcomes == ["ok"], "a healed group answers a read", outcomes=outcomes)


def _outcomes(group: SimGroup, operation: Callable[[Life, Callable[[str, str | None], None]], None]) -> list[str]:
    """Return the outcome of an operation on the leader, or an empty list without an answer within `ANSWER_S`."""
    outcomes: list[str] = []

    def done(outcome: str, hint: str | None) -> None:
        _ = hint
        outcomes.append(outcome)

    life = leading(group)
    life.environment.call_soon(lambda: operation(life, done))
    group.scheduler.run_until(group.scheduler.now + ANSWER_S)
    return outcomes


def leading(group: SimGroup) -> Life:
    """Return the life that leads a whole group."""
    leader = group.leader
    require(leader is not None and leader.life is not None, "a healed group has a leader")
    assert leader is not None
    assert leader.life is not None
    return leader.life


def _usual_clients(random: Random) -> WorkloadSettings:
    return WorkloadSettings(
        clients=random.choice((1, 3, 6)),
        think_s=random.choice((0.02, 0.05, 0.15)),
        timeout_s=random.choice((0.3, 1.5)),
        keys=random.choice((1, 8)),
        read_share=random.choice((0.1, 0.4)),
        padding_bytes=random.choice((100, 800, 4000)),
        large_share=random.choice((0.0, 0.01, 0.05)),
    )


def _bursty_clients(random: Random) -> WorkloadSettings:
    """Draw clients that write, now and then, more at once than a leader accepts before a majority has it."""
    return replace(
        _usual_clients(random),
        burst_share=random.choice((0.1, 0.4)),
        burst=random.choice((20, 60)),
    )


@dataclass(frozen=True, slots=True)
class RegisterScenario:
    """Scenario with registers.

    `draw_plan` draws a seed's group and faults. With `bursts` clients write much at once.
    """

    name: str
    draw_plan: Callable[[Random, Collection[str] | None], Plan]
    bursts: bool = False

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        """Draw a seed's group and faults."""
        return self.draw_plan(random, kinds)

    def draw(self, random: Random, limits: Limits) -> RegisterTrial:
        """Draw a seed's clients."""
        settings = _bursty_clients(random) if self.bursts else _usual_clients(random)
        padding_bytes = random.choice((0, 0, 0, 20 << 10, 600 << 10))
        if limits.clients is not None:
            settings = replace(settings, clients=min(settings.clients, limits.clients))
        return RegisterTrial(random, settings, padding_bytes, limits.operations)
