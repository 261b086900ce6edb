"""Faults of whole machines: their processes, power and clocks."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.sim.disk import Keep
from dledger.sim.group import SimGroup, SimNode

MUTATING = frozenset(("pwrite", "datasync", "rename", "unlink", "sync_dir", "truncate", "reserve"))


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
class ClockJump:
    """A wall clock goes wrong."""

    node: str
    by_ms: int
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        self._shift(group.nodes[self.node], self.by_ms)
        group.clocks_jumped = True
        return True

    def heal(self, group: SimGroup) -> None:
        self._shift(group.nodes[self.node], -self.by_ms)

    def _shift(self, node: SimNode, by_ms: int) -> None:
        node.wall_offset_ms += by_ms
        if node.life is not None:
            node.life.environment.wall_offset_ms = node.wall_offset_ms
