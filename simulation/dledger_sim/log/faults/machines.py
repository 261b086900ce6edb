"""Faults of whole machines: processes, power and clocks."""

from __future__ import annotations

from dataclasses import dataclass

from dledger.testing.disk import POWER_GONE
from dledger.testing.inodes import Keep
from dledger_sim.log.group import SimGroup

MUTATING = frozenset(("pwrite", "datasync", "rename", "unlink", "sync_dir", "truncate", "reserve"))


@dataclass(frozen=True, slots=True)
class Crash:
    """Power loss of some nodes at once."""

    nodes: tuple[str, ...]
    keep: Keep
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        nodes = [group.nodes[name] for name in self.nodes]
        if all(node.life is None for node in nodes) or not all(node.may_lose_power for node in nodes):
            return False
        for name in self.nodes:
            group.crash(name, self.keep)
        return True

    def heal(self, group: SimGroup) -> None:
        for name in self.nodes:
            group.start(name)


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL of some nodes at once, or with `orderly` a clean stop, which the mark records."""

    nodes: tuple[str, ...]
    duration_s: float
    orderly: bool = False

    def inject(self, group: SimGroup) -> bool:
        if all(group.nodes[name].life is None for name in self.nodes):
            return False
        for name in self.nodes:
            if self.orderly:
                group.stop(name)
            else:
                group.kill(name)
        return True

    def heal(self, group: SimGroup) -> None:
        for name in self.nodes:
            group.start(name)


@dataclass(frozen=True, slots=True)
class PowerCut:
    """Power loss in the middle of a node's work: at its n-th disk operation from now.

    With `restart` the node is killed first, so that the operations are those of its recovery.
    """

    node: str
    operations: int
    restart: bool
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.disk.faults or not node.may_lose_power:
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
        node.disk.fail(matches, POWER_GONE, once=False)
        if self.restart:
            group.start(self.node)
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].disk.faults.clear()
        group.start(self.node)


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP of some nodes at once."""

    nodes: tuple[str, ...]
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        lives = [life for name in self.nodes if (life := group.nodes[name].life) is not None]
        for life in lives:
            life.environment.pause(group.scheduler.now + self.duration_s)
        return bool(lives)

    def heal(self, group: SimGroup) -> None:
        """Do nothing: the pause ends by itself."""


@dataclass(frozen=True, slots=True)
class LongPause:
    """SIGSTOP of a node for up to a minute, while other faults strike: as a fault it ends at once.

    It is injected only while no other node is paused.
    """

    node: str
    pause_s: float
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        life = group.nodes[self.node].life
        if life is None or group.paused_until > group.scheduler.now:
            return False
        life.environment.pause(group.scheduler.now + self.pause_s)
        group.longest_pause_s = max(group.longest_pause_s, self.pause_s)
        return True

    def heal(self, group: SimGroup) -> None:
        """Do nothing: the pause ends by itself."""


@dataclass(frozen=True, slots=True)
class ClockJump:
    """Jump of a wall clock."""

    node: str
    by_ms: int
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        group.nodes[self.node].wall_offset_ms += self.by_ms
        group.clocks_jumped = True
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].wall_offset_ms -= self.by_ms


@dataclass(frozen=True, slots=True)
class ClockDrift:
    """Drift of a wall clock: it gains or loses `gain` seconds each second, and is corrected at the end."""

    node: str
    gain: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        node.wall_gain, node.wall_gains_from = self.gain, group.scheduler.now
        group.clocks_jumped = True
        return True

    def heal(self, group: SimGroup) -> None:
        group.nodes[self.node].wall_gain = 0.0
