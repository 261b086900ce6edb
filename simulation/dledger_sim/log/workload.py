"""Clients: each writes and reads registers, one operation at a time, at the node that it believes to be the leader.

An operation ends `ok`, `fail` (certainly not proposed) or `info` (unknown). Every attempt has its own operation number,
so that nothing is ever repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dledger.errors import BusyError, LogFullError, NotLeaderError, StorageError, TooLargeError
from dledger_sim.log.group import Life, SimGroup
from dledger_sim.log.invariants import require
from dledger_sim.log.machine import UNIT_BYTES, Pending, RegisterMachine, Written, encode_unit


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """Settings of the clients."""

    clients: int = 4
    think_s: float = 0.03
    """Mean pause between two operations of a client, in seconds."""
    timeout_s: float = 1.5
    """Time limit after which a client asks another node, in seconds."""
    keys: int = 8
    read_share: float = 0.25
    burst_share: float = 0.1
    """Share of the writes that come in bursts of up to `burst`."""
    burst: int = 20
    padding_bytes: int = 400
    large_share: float = 0.01
    """Share of the writes with up to `large_bytes`, a quarter of the smallest segment."""
    large_bytes: int = 16 << 10


class Workload:
    """Clients, with all their answers."""

    def __init__(
        self, group: SimGroup, random: Random, settings: WorkloadSettings, most_operations: int | None = None
    ) -> None:
        self._most_operations = most_operations
        self._group = group
        self._random = random
        self._settings = settings
        self._operations = 0
        self._floors: dict[int, int] = {}
        self._losses = 0
        self._active = True
        self.counts: Counter[str] = Counter()
        """Number of writes by outcome, and of reads."""

    def start(self) -> None:
        """Start the clients."""
        for _ in range(self._settings.clients):
            _Client(self, self._random.choice(self._group.settings.names)).pause()

    def stop(self) -> None:
        """Stop the clients: no operation begins any more."""
        self._active = False

    @property
    def active(self) -> bool:
        return self._active and (self._most_operations is None or self._operations < self._most_operations)

    @property
    def group(self) -> SimGroup:
        return self._group

    @property
    def random(self) -> Random:
        return self._random

    @property
    def settings(self) -> WorkloadSettings:
        return self._settings

    def write(self, life: Life, key: int, padding: int, done: Callable[[str, str | None], None]) -> None:
        """Write on the event loop of a node, and call `done(outcome, leader hint)`."""
        self._operations += 1
        operation = self._operations
        unit = encode_unit(key, operation, padding)
        witness = self._group.witness

        def resolve(outcome: str, position: int) -> None:
            life.waiting.settled(operation)
            if outcome == "ok":
                witness.answered_ok(operation, position)
                self._lift(life, key, position)
                self.counts["ok"] += 1
            else:
                self.counts[outcome] += 1
                if outcome == "fail":
                    witness.answered_fail(operation)
            done(outcome, None)

        pending = Pending(operation, resolve)
        life.waiting.proposing(operation)
        too_much = life.waiting.is_too_much()
        try:
            pending.position = life.replica.stage(len(unit), lambda _position: (unit,), b"", pending)
        except NotLeaderError as error:
            life.waiting.refused(operation)
            self.counts["fail"] += 1
            witness.answered_fail(operation)
            done("fail", error.leader_id)
        except (BusyError, LogFullError, TooLargeError) as error:
            life.waiting.refused(operation)
            self.counts["fail"] += 1
            if isinstance(error, BusyError):
                self.counts["busy"] += 1
                require(
                    too_much is not False,
                    "an operation is refused as busy only while too much data waits for a majority",
                    node=life.node.name,
                )
            witness.answered_fail(operation)
            done("fail", life.node.name)
        except StorageError:
            # The disk failed under an earlier unit, so the replica ends.
            life.waiting.refused(operation)
            self.counts["info"] += 1
            done("info", None)
        else:
            require(not too_much, "a leader accepts no more data than may wait for a majority", node=life.node.name)

    def read(self, life: Life, key: int, done: Callable[[str, str | None], None]) -> None:
        """Read on the event loop of a node."""
        self._forget_lost()
        floor, losses = self._floors.get(key, -1), self._losses
        committed = self._group.witness.committed
        number = life.waiting.reading(len(committed) - 1)

        def confirmed(error: Exception | None) -> None:
            life.waiting.read(number, error, len(committed) - 1)
            if error is not None:
                done("fail", error.leader_id if isinstance(error, NotLeaderError) else None)
                return
            written = _registers(life).get(key)
            position = -1 if written is None else written.position
            self._forget_lost()
            require(
                position >= floor or losses != self._losses,
                "a read returns at least all operations that were acknowledged before it began",
                node=life.node.name,
                key=key,
                found=position,
                floor=floor,
            )
            self._lift(life, key, position)
            self.counts["read"] += 1
            done("ok", None)

        life.replica.read_index(confirmed)

    def _lift(self, life: Life, key: int, position: int) -> None:
        """Note that every later read of a register must return this write, or a later write."""
        self._forget_lost()
        if not life.astray:
            self._floors[key] = max(self._floors.get(key, -1), position)

    def _forget_lost(self) -> None:
        """Drop the floors of writes that an operator has accepted to lose."""
        positions = self._group.witness.losses.positions
        for lost in positions[self._losses :]:
            self._floors = {key: floor for key, floor in self._floors.items() if floor < lost}
        self._losses = len(positions)


def _registers(life: Life) -> dict[int, Written]:
    machine = life.machine
    assert isinstance(machine, RegisterMachine)
    return machine.registers


class _Client:
    """Client: an operation, a pause, an operation, …"""

    def __init__(self, workload: Workload, believed: str) -> None:
        self._workload = workload
        self._chosen_node = believed
        self._number = 0

    def pause(self, factor: float = 1.0) -> None:
        workload = self._workload
        delay = workload.random.expovariate(1.0) * workload.settings.think_s * factor
        workload.group.scheduler.after(delay, self._act)

    def _act(self) -> None:
        workload, random = self._workload, self._workload.random
        if not workload.active:
            return
        group = workload.group
        life = group.nodes[self._chosen_node].life
        if life is None or self._chosen_node in group.unreachable:
            self._chosen_node = random.choice(group.settings.names)
            self.pause()
            return
        self._number += 1
        number, settings = self._number, workload.settings
        key = random.randrange(settings.keys)

        def done(outcome: str, hint: str | None) -> None:
            if number != self._number:
                return
            self._number += 1
            if outcome != "ok":
                self._chosen_node = hint or random.choice(group.settings.names)
            self.pause()

        def give_up() -> None:
            if number == self._number:
                done("info", None)

        group.scheduler.after(settings.timeout_s, give_up)
        if random.random() < settings.read_share:
            life.environment.call_soon(lambda: workload.read(life, key, done))
            return
        count = random.randint(2, settings.burst) if random.random() < settings.burst_share else 1
        paddings = [self._padding() for _ in range(count)]

        def write_all() -> None:
            for padding in paddings:
                workload.write(life, key, padding, done)

        life.environment.call_soon(write_all)

    def _padding(self) -> int:
        settings, random = self._workload.settings, self._workload.random
        if random.random() < settings.large_share:
            return random.randint(0, settings.large_bytes - UNIT_BYTES)
        return random.randint(0, settings.padding_bytes)
