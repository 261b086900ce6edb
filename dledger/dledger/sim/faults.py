"""Faults as values: injected, and healed after their time.

`inject` returns False if the fault makes no sense now (the node is down already, nobody leads, …).  A fault that makes
a node forget what it promised is only injected while everybody else remembers everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dledger.errors import LogError
from dledger.replica.joining import without
from dledger.replica.opening import LOG_DIRECTORIES
from dledger.sim.disk import UNLIMITED_BYTES, Keep
from dledger.sim.group import SimGroup, SimNode
from dledger.store.segments import DIRECTORY as LOG_DIRECTORY

MUTATING = frozenset(("pwrite", "datasync", "rename", "unlink", "sync_dir", "truncate", "reserve"))


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
    duration_s: float
    orderly: bool = False

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

        def matches(operation: str, _path: str) -> bool:
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
            group.network.block(a, b)
        return True

    def heal(self, group: SimGroup) -> None:
        for a, b in self.pairs:
            group.network.unblock(a, b)


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


def _may_rot(group: SimGroup, node: SimNode) -> bool:
    """Everybody else remembers everything, and nothing else is rotten."""
    others_rot = any(other.rotten for other in group.nodes.values() if other is not node)
    return node.life is not None and group.healthy() and not others_rot and not group.damaged


@dataclass(frozen=True, slots=True)
class BitFlip:
    """A bit of a node's files rots, of a stopped one or, with `running`, under its eyes."""

    node: str
    where: float
    prefix: str
    duration_s: float
    running: bool = False

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node):
            return False
        if not self.running:
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
class LoseSegment:
    """A segment of a stopped node's log is deleted, or with `cut` loses its second half."""

    node: str
    where: float
    cut: bool
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if not _may_rot(group, node):
            return False
        group.kill(self.node)
        segments = [path for path in node.disk.paths() if path.startswith(LOG_DIRECTORY)]
        path = segments[int(self.where * len(segments))]
        node.rotten = True
        group.witness.amnesia(self.node)
        if self.cut:
            file = node.disk.open(path)
            file.truncate(file.size() // 2)
            file.close()
        else:
            node.disk.unlink(path)
            node.disk.sync_dir(LOG_DIRECTORY)
        return True

    def heal(self, group: SimGroup) -> None:
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class OldCopy:
    """A copy of a stopped node's directory is put back after a while, over what it has become."""

    node: str
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.copy is not None or node.disk.faults or node.rotten:
            return False
        group.kill(self.node)
        node.copy = node.disk.image()
        group.start(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        node = group.nodes[self.node]
        copy, node.copy = node.copy, None
        if copy is None or not _may_rot(group, node):
            return
        group.kill(self.node)
        group.witness.amnesia(self.node)
        group.witness.happened["old copy restored"] += 1
        node.disk.restore(copy)
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
class ClientCut:
    """Clients do not reach some nodes; the nodes reach each other."""

    nodes: tuple[str, ...]
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        group.unreachable.update(self.nodes)
        return True

    def heal(self, group: SimGroup) -> None:
        group.unreachable.difference_update(self.nodes)


@dataclass(frozen=True, slots=True)
class Trim:
    """The leader has everybody drop what lies before one of its snapshots."""

    which: float
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.life is None:
            return False
        life, store = leader.life, leader.life.replica.store
        positions = [meta.position for meta in store.snapshots.list() if meta.position > store.first_position]
        if not positions:
            return False
        position = positions[int(self.which * len(positions))]
        call_on(leader, lambda: life.service.trim(position))
        return True

    def heal(self, group: SimGroup) -> None:
        """What is gone is gone."""


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
        call_on(leader, lambda: replica.change_membership(without(membership, member)))
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
        call_on(leader, lambda: replica.transfer(None if member == replica.me else member))
        return True

    def heal(self, group: SimGroup) -> None:
        """The old leader leads on if the new one does not take over."""


def call_on(node: SimNode, work: Callable[[], object]) -> None:
    """Do something on a running node's event loop; that it refuses is no fault of anybody's."""

    def attempt() -> None:
        try:
            work()
        except LogError:
            pass

    assert node.life is not None
    node.life.environment.call_soon(attempt)


_TYPES: Final[tuple[type[Fault], ...]] = (
    Crash,
    Kill,
    PowerCut,
    Pause,
    Partition,
    Cut,
    ClientCut,
    SlowLinks,
    SlowDisk,
    FullDisk,
    DiskError,
    BitFlip,
    LoseSegment,
    OldCopy,
    Wipe,
    LoseFiles,
    ClockJump,
    Remove,
    Transfer,
    Trim,
)
FAULTS: Final = {fault.__name__: fault for fault in _TYPES}
"""Every fault by the name of its class."""
