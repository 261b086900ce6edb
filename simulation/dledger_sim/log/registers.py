"""The scenario of the log alone: registers, written and read by clients that talk to replicas directly."""

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
"""A snapshot is sent in about so many, more than may wait for the receiver's disk."""
SPACE_NOTICED_S = 5.0
ANSWER_S = 3.0
"""A write may wait for a worker that stands still more than once, and another one behind that."""
"""A leader refuses writes at most so long because of disks that are full no more."""


class RegisterService:
    """One life's registers."""

    def __init__(self, life: Life, witness: Witness, padding_bytes: int) -> None:
        self._life = life
        self._padding_bytes = padding_bytes
        self.machine = RegisterMachine(padding_bytes, witness.applying(life.replica_id))

    def start(self) -> None:
        """See `Service.start`."""
        self._life.replica.snapshots.chunk_bytes = 1 + self._padding_bytes // CHUNKS

    def stop(self, done: Callable[[], None]) -> None:
        """See `Service.stop`."""
        done()

    def leave(self) -> None:
        """See `Service.leave`: nothing waits here."""

    def trim(self, position: int) -> None:
        """See `Service.trim`."""
        self._life.replica.propose_trim(position)


def serve_registers(group: SimGroup, life: Life) -> RegisterService:
    """A life without clients of its own."""
    return RegisterService(life, group.witness, 0)


class RegisterTrial:
    """One seed's clients; `padding_bytes` make snapshots large."""

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
        """See `Trial.counts`."""
        return Counter() if self._workload is None else self._workload.counts

    def serve(self, group: SimGroup, life: Life) -> RegisterService:
        """See `Trial.serve`."""
        return RegisterService(life, group.witness, self._padding_bytes)

    def start(self, group: SimGroup) -> None:
        """See `Trial.start`."""
        self._workload = Workload(group, self._random, self._settings, self._operations)
        self._workload.start()

    def stop(self) -> None:
        """See `Trial.stop`."""
        self.workload.stop()

    def judge(self, group: SimGroup) -> None:
        """See `Trial.judge`: a write and a read succeed."""
        workload = self.workload
        deadline = group.scheduler.now + SPACE_NOTICED_S
        outcomes = _outcomes(group, lambda life, done: workload.write(life, 0, 10, done))
        # Of unknown outcome is what a leader was asked that hands over just then, as one does whose disk was slow.
        while outcomes in (["fail"], ["info"]) and group.scheduler.now < deadline:
            outcomes = _outcomes(group, lambda life, done: workload.write(life, 0, 10, done))
        require(outcomes == ["ok"], "a whole group takes a write", outcomes=outcomes)
        outcomes = _outcomes(group, lambda life, done: workload.read(life, 0, done))
        require(outcomes == ["ok"], "a whole group answers a read", outcomes=outcomes)


def _outcomes(group: SimGroup, operation: Callable[[Life, Callable[[str, str | None], None]], None]) -> list[str]:
    """How an operation on the leader went: nothing if there was no answer within `ANSWER_S`."""
    outcomes: list[str] = []

    def done(outcome: str, hint: str | None) -> None:
        _ = hint
        outcomes.append(outcome)

    life = leading(group)
    life.environment.call_soon(lambda: operation(life, done))
    group.scheduler.run_until(group.scheduler.now + ANSWER_S)
    return outcomes


def leading(group: SimGroup) -> Life:
    """The life that leads a whole group."""
    leader = group.leader
    require(leader is not None and leader.life is not None, "a whole group has a leader")
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
    """Now and then they write more at once than a leader takes that waits for others."""
    return replace(
        _usual_clients(random),
        burst_share=random.choice((0.1, 0.4)),
        burst=random.choice((20, 60)),
    )


@dataclass(frozen=True, slots=True)
class RegisterScenario:
    """See `Scenario`; `draw_plan` draws a seed's group and faults.  With `bursts` clients write much at once."""

    name: str
    draw_plan: Callable[[Random, Collection[str] | None], Plan]
    bursts: bool = False

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        """See `Scenario.plan`."""
        return self.draw_plan(random, kinds)

    def draw(self, random: Random, limits: Limits) -> RegisterTrial:
        """See `Scenario.draw`."""
        settings = _bursty_clients(random) if self.bursts else _usual_clients(random)
        padding_bytes = random.choice((0, 0, 0, 20 << 10, 600 << 10))
        if limits.clients is not None:
            settings = replace(settings, clients=min(settings.clients, limits.clients))
        return RegisterTrial(random, settings, padding_bytes, limits.operations)
