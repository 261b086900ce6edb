"""Faults as values: drawn from the seed, injected, healed.

`inject` returns False if the fault makes no sense now (the node is down already, nobody leads, …).  A fault that makes
a node forget what it promised is only injected while everybody else remembers everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from dledger.errors import LogError
from dledger.replica.joining import without
from dledger.replica.opening import LOG_DIRECTORIES
from dledger.sim.disk import UNLIMITED_BYTES, Keep
from dledger.sim.group import KEEPS, SimGroup, SimNode
from dledger.store.segments import DIRECTORY as LOG_DIRECTORY

MUTATING = frozenset(("pwrite", "datasync", "rename", "unlink", "sync_dir", "truncate", "reserve"))
SUPERVISE_S = 0.4
PATIENCE = 3
"""Starts of a node with damaged files, before it is given an empty directory."""


class Fault(Protocol):
    """Something that goes wrong for a while."""

    @property
    def duration_s(self) -> float: ...

    def inject(self, group: SimGroup) -> bool: ...

    def heal(self, group: SimGroup) -> None: ...


@dataclass(frozen=True, slots=True)
class Crash:
    """Power loss of some nodes at once."""

    nodes: tuple[str, ...]
    keep: Keep
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if all(group.nodes[name].life is None for name in self.nodes):
            return False
        for name in self.nodes:
            group.crash(name, self.keep)
        return True

    def heal(self, group: SimGroup) -> None:
        for name in self.nodes:
            group.start(name)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL, or with `orderly` a stop that says so in the mark."""

    node: str
    orderly: bool
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if group.nodes[self.node].life is None:
            return False
        if self.orderly:
            group.stop(self.node)
        else:
            group.kill(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class PowerCut:
    """Power is lost in the middle of whatever the node does: at its n-th disk operation from now.

    With `restart` it is killed first, so that the operations are those of its recovery.
    """

    node: str
    operations: int
    restart: bool
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.disk.faults:
            return False
        left = self.operations

        def matches(operation: str, path: str) -> bool:
            nonlocal left
            if operation in MUTATING:
                left -= 1
            if left < 0:
                node.losing_power = True
            return left < 0

        if self.restart:
            group.kill(self.node)
        node.disk.fail(matches, once=False)
        if self.restart:
            group.start(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].disk.faults.clear()
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP."""

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        life = group.nodes[self.node].life
        if life is None:
            return False
        life.environment.pause(group.scheduler.now + self.duration_s)
        return True

    def heal(self, group: SimGroup) -> None:
        """The pause ends by itself."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Directed pairs that hear nothing of each other."""

    pairs: tuple[tuple[str, str], ...]
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        for a, b in self.pairs:
            group.network.block(a, b, True)
        return True

    def heal(self, group: SimGroup) -> None:
        for a, b in self.pairs:
            group.network.block(a, b, False)


@dataclass(frozen=True, slots=True)
class Cut:
    """Connections break, and may be made anew at once."""

    pairs: tuple[tuple[str, str], ...]
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        for a, b in self.pairs:
            group.network.cut(a, b)
        return True

    def heal(self, group: SimGroup) -> None:
        """Both sides dial by themselves."""


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """Messages take longer on some directed pairs."""

    pairs: tuple[tuple[str, str], ...]
    delay_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        for a, b in self.pairs:
            group.network.slow(a, b, self.delay_s)
        return True

    def heal(self, group: SimGroup) -> None:
        for a, b in self.pairs:
            group.network.slow(a, b, 0.0)


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """Syncs take up to seconds."""

    node: str
    sync_s: float
    normal_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        group.nodes[self.node].sync_delay_s = self.sync_s
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].sync_delay_s = self.normal_s


@dataclass(frozen=True, slots=True)
class FullDisk:
    """No space is left but a little."""

    node: str
    spare_bytes: int
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        disk = group.nodes[self.node].disk
        disk.capacity_bytes = disk.allocated_bytes + self.spare_bytes
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].disk.capacity_bytes = UNLIMITED_BYTES


@dataclass(frozen=True, slots=True)
class DiskError:
    """The next write or sync of a kind of file fails; the node dies of it and starts again."""

    node: str
    operation: str
    prefix: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.disk.faults:
            return False

        def matches(operation: str, path: str) -> bool:
            fails = operation == self.operation and path.startswith(self.prefix)
            node.failing_disk = node.failing_disk or fails
            return fails

        node.disk.fail(matches)
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].disk.faults.clear()
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class BitFlip:
    """A bit of a stopped node's files rots."""

    node: str
    where: float
    prefix: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        others_rot = any(other.rotten for other in group.nodes.values() if other is not node)
        if node.life is None or not group.healthy() or others_rot or group.damaged:
            return False
        group.kill(self.node)
        files = [path for path in node.disk.paths() if path.startswith(self.prefix)]
        sizes = [node.disk.durable_size(path) for path in files]
        byte = int(self.where * sum(sizes))
        for path, size in zip(files, sizes, strict=True):
            if byte < size:
                node.disk.flip_bit(path, byte * 8 + int(self.where * 1e6) % 8)
                node.rotten = True
                group.witness.amnesia(self.node)
                break
            byte -= size
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class Wipe:
    """A node loses its directory: it comes back as another incarnation."""

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if not group.healthy() or group.damaged:
            return False
        group.wipe(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class LoseFiles:
    """A node's log, votes and snapshots are deleted; who it is is left.  It must not pass for the member it was."""

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        if not group.healthy() or group.damaged:
            return False
        group.kill(self.node)
        group.witness.amnesia(self.node)
        disk = group.nodes[self.node].disk
        for directory in LOG_DIRECTORIES:
            disk.rmtree(directory)
        disk.sync_dir(".")
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A wall clock goes wrong."""

    node: str
    by_ms: int
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        self._shift(group.nodes[self.node], self.by_ms)
        return True

    def heal(self, group: SimGroup) -> None:
        self._shift(group.nodes[self.node], -self.by_ms)

    def _shift(self, node: SimNode, by_ms: int) -> None:
        node.wall_offset_ms += by_ms
        if node.life is not None:
            node.life.environment.wall_offset_ms = node.wall_offset_ms


@dataclass(frozen=True, slots=True)
class Remove:
    """The leader removes a member, perhaps itself; the group takes it back by itself.

    Only while every voter is there: who removes a live member of three when another one is gone for good has nothing
    left to decide with.
    """

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        replica = leader.life.replica
        membership = replica.engine.table.membership
        member = membership.find(self.node)
        alive = {node.life.replica_id for node in group.running if node.life is not None}
        if (
            member is None
            or not alive.issuperset(membership.voters)
            or group.damaged
            or len(membership.voters) < 3
            or not replica.engine.can_change_membership
        ):
            return False
        _call(leader, lambda: replica.change_membership(without(membership, member)))
        return True

    def heal(self, group: SimGroup) -> None:
        """The leader adds whoever is configured and connected."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """The leader hands over."""

    node: str
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        replica = leader.life.replica
        member = replica.engine.table.membership.find(self.node)
        if member is None:
            return False
        _call(leader, lambda: replica.transfer(None if member == replica.me else member))
        return True

    def heal(self, group: SimGroup) -> None:
        """The old leader leads on if the new one does not take over."""


def _call(node: SimNode, work: Callable[[], object]) -> None:
    """Do something on a node's event loop; that it refuses is no fault of anybody's."""

    def attempt() -> None:
        try:
            work()
        except LogError:
            pass

    assert node.life is not None
    node.life.environment.call_soon(attempt)


Draw = Callable[[Random, SimGroup], Fault]


def _names(random: Random, group: SimGroup) -> list[str]:
    names = list(group.settings.names)
    random.shuffle(names)
    return names


def _one(random: Random, group: SimGroup) -> str:
    """Any node, but the leader more often than not."""
    leader = group.leader
    if leader is not None and random.random() < 0.5:
        return leader.name
    return random.choice(group.settings.names)


def _down(random: Random) -> float:
    return random.choice((0.05, 0.3, 1.0, 3.0)) * random.uniform(0.5, 1.5)


def _crash_one(random: Random, group: SimGroup) -> Fault:
    return Crash((_one(random, group),), random.choice(KEEPS), _down(random))


def _crash_many(random: Random, group: SimGroup) -> Fault:
    names = _names(random, group)
    return Crash(tuple(names[: random.randint(2, len(names))]), random.choice(KEEPS), _down(random))


def _crash_all(random: Random, group: SimGroup) -> Fault:
    return Crash(group.settings.names, random.choice(KEEPS), random.uniform(0.05, 0.5))


def _between(some: list[str], others: list[str]) -> list[tuple[str, str]]:
    return [(a, b) for a in some for b in others] + [(b, a) for a in some for b in others]


def _isolate(random: Random, group: SimGroup) -> Fault:
    name = _one(random, group)
    others = [other for other in group.settings.names if other != name]
    return Partition(tuple(_between([name], others)), _down(random))


def _halves(random: Random, group: SimGroup) -> Fault:
    names = _names(random, group)
    middle = len(names) // 2
    return Partition(tuple(_between(names[:middle], names[middle:])), _down(random))


def _ring(random: Random, group: SimGroup) -> Fault:
    """Everybody hears only the next one, or (three nodes) two of them do not hear each other."""
    names = _names(random, group)
    if len(names) == 3:
        return Partition(tuple(_between(names[:1], names[1:2])), _down(random))
    near = {(names[at], names[at - 1]) for at in range(len(names))}
    pairs = [(a, b) for a in names for b in names if a != b and (a, b) not in near and (b, a) not in near]
    return Partition(tuple(pairs), _down(random))


def _one_way(random: Random, group: SimGroup) -> Fault:
    name = _one(random, group)
    others = [other for other in group.settings.names if other != name]
    if random.random() < 0.5:
        return Partition(tuple((name, other) for other in others), _down(random))
    return Partition(tuple((other, name) for other in others), _down(random))


def _some_pairs(random: Random, group: SimGroup) -> tuple[tuple[str, str], ...]:
    names = group.settings.names
    pairs = [(a, b) for a in names for b in names if a != b and random.random() < 0.5]
    return tuple(pairs)


KINDS: Mapping[str, Draw] = {
    "crash": _crash_one,
    "crash-many": _crash_many,
    "crash-all": _crash_all,
    "kill": lambda random, group: Kill(_one(random, group), False, _down(random)),
    "stop": lambda random, group: Kill(_one(random, group), True, _down(random)),
    "power-cut": lambda random, group: PowerCut(
        _one(random, group), random.randrange(random.choice((5, 40, 200))), random.random() < 0.5, random.uniform(0.5, 2)
    ),
    "pause": lambda random, group: Pause(_one(random, group), _down(random)),
    "isolate": _isolate,
    "halves": _halves,
    "ring": _ring,
    "one-way": _one_way,
    "cut": lambda random, group: Cut(_some_pairs(random, group)),
    "slow-links": lambda random, group: SlowLinks(
        _some_pairs(random, group), random.choice((0.01, 0.1, 0.4)), _down(random)
    ),
    "slow-disk": lambda random, group: SlowDisk(
        _one(random, group), random.choice((0.02, 0.2, 1.0, 2.5)), 0.001, _down(random)
    ),
    "full-disk": lambda random, group: FullDisk(
        _one(random, group), random.choice((0, 8 << 10, 100 << 10, 300 << 10)), _down(random)
    ),
    "disk-error": lambda random, group: DiskError(
        _one(random, group),
        random.choice(("datasync", "datasync", "pwrite")),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "raft/hardstate", "raft/mark", "index", "snapshots")),
        _down(random),
    ),
    "bit-flip": lambda random, group: BitFlip(
        _one(random, group),
        random.random(),
        random.choice((LOG_DIRECTORY, LOG_DIRECTORY, "index", "snapshots", "raft/mark", "raft/hardstate")),
        random.uniform(0.1, 1.0),
    ),
    "wipe": lambda random, group: Wipe(_one(random, group), random.uniform(0.1, 1.0)),
    "lose-files": lambda random, group: LoseFiles(_one(random, group), random.uniform(0.1, 1.0)),
    "clock-jump": lambda random, group: ClockJump(
        _one(random, group), random.choice((-1, 1)) * random.choice((50, 5_000, 86_400_000)), _down(random)
    ),
    "remove": lambda random, group: Remove(_one(random, group)),
    "transfer": lambda random, group: Transfer(_one(random, group)),
}


class Nemesis:
    """Injects what it draws, heals it in time, and keeps dead nodes from staying dead."""

    def __init__(
        self,
        group: SimGroup,
        random: Random,
        *,
        kinds: Mapping[str, float],
        interval_s: float,
        most_at_once: int,
        trim_s: float,
    ) -> None:
        """`kinds` are weights; `interval_s` and `trim_s` are the mean times between two faults, and two trims."""
        self._group = group
        self._random = random
        self._kinds = list(kinds)
        self._weights = list(kinds.values())
        self._interval_s = interval_s
        self._most_at_once = most_at_once
        self._trim_s = trim_s
        self._open: dict[int, Fault] = {}
        self._serial = 0
        self._active = True
        self._refused: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()

    def start(self) -> None:
        """Let the trouble begin."""
        self._later()
        self._retain()
        self._supervise()

    def _later(self) -> None:
        self._group.scheduler.after(self._random.expovariate(1 / self._interval_s), self._strike)

    def _strike(self) -> None:
        if not self._active:
            return
        self._later()
        if len(self._open) >= self._most_at_once:
            return
        kind = self._random.choices(self._kinds, self._weights)[0]
        fault = KINDS[kind](self._random, self._group)
        if not fault.inject(self._group):
            return
        self._group.say(f"inject {fault}")
        self.injected[kind] += 1
        self._serial += 1
        serial = self._serial
        self._open[serial] = fault
        self._group.scheduler.after(fault.duration_s, lambda: self._heal(serial))

    def _heal(self, serial: int) -> None:
        fault = self._open.pop(serial, None)
        if fault is not None:
            if fault.duration_s:
                self._group.say(f"heal {fault}")
            fault.heal(self._group)

    def _retain(self) -> None:
        """The leader has everybody drop what lies before one of its snapshots, now and then."""
        self._group.scheduler.after(self._random.expovariate(1 / self._trim_s), self._retain)
        leader = self._group.leader
        if leader is None or leader.life is None or not self._active:
            return
        replica = leader.life.replica
        positions = [meta.position for meta in replica.snapshots.list() if meta.position > replica.store.first_position]
        if positions:
            position = self._random.choice(positions)
            _call(leader, lambda: replica.propose_trim(position))

    def _supervise(self) -> None:
        """Start what died of itself; give up on what refuses to start because its files rotted."""
        self._group.scheduler.after(SUPERVISE_S, self._supervise)
        if self._open:
            return
        if self._group.healthy():
            self._refused.clear()
        for name, node in self._group.nodes.items():
            if node.life is not None:
                continue
            self._refused[name] += 1
            if node.rotten and self._refused[name] > PATIENCE:
                self._group.wipe(name)
            self._group.start(name)

    def heal_all(self) -> None:
        """End all trouble; nodes that died are started again."""
        self._active = False
        for serial in list(self._open):
            self._heal(serial)
        group = self._group
        group.network.heal()
        for node in group.nodes.values():
            node.disk.faults.clear()
            node.disk.capacity_bytes = UNLIMITED_BYTES
