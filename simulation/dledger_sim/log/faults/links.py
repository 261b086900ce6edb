"""Faults of the network: between nodes, and between clients and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from dledger_sim.log.group import SimGroup


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
class Throttle:
    """Some directed pairs carry so many bytes a second, on each of their lanes; with 0 everything waits for the end."""

    pairs: tuple[tuple[str, str], ...]
    bytes_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        for a, b in self.pairs:
            group.network.throttle(a, b, self.bytes_s)
        return True

    def heal(self, group: SimGroup) -> None:
        for a, b in self.pairs:
            group.network.throttle(a, b, None)


@dataclass(frozen=True, slots=True)
class SlowClose:
    """Connections of some directed pairs that are lost, for whatever reason, take so long to be noticed."""

    pairs: tuple[tuple[str, str], ...]
    linger_s: float
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        for a, b in self.pairs:
            group.network.linger(a, b, self.linger_s)
        return True

    def heal(self, group: SimGroup) -> None:
        for a, b in self.pairs:
            group.network.linger(a, b, 0.0)


@dataclass(frozen=True, slots=True)
class Deposed:
    """The leader stands still and is cut off from the others, until they have elected another one; then it wakes.

    It is cut off for a while longer, in which it does not know.  Clients reach it.
    """

    node: str
    pause_s: float
    duration_s: float

    def _pairs(self, group: SimGroup) -> list[tuple[str, str]]:
        return [pair for pair in permutations(group.settings.names, 2) if self.node in pair]

    def inject(self, group: SimGroup) -> bool:
        leader = group.leader
        if leader is None or leader.name != self.node or leader.life is None:
            return False
        leader.life.environment.pause(group.scheduler.now + self.pause_s)
        for a, b in self._pairs(group):
            group.network.block(a, b)
        return True

    def heal(self, group: SimGroup) -> None:
        for a, b in self._pairs(group):
            group.network.unblock(a, b)


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
