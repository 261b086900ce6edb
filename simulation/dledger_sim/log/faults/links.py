"""Faults of the network, between nodes and between clients and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

from dledger_sim.log.group import SimGroup


@dataclass(frozen=True, slots=True)
class Partition:
    """Partition: directed pairs over which no message arrives."""

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
    """Broken connections, which may be dialled again at once."""

    pairs: tuple[tuple[str, str], ...]
    duration_s: float = 0.0

    def inject(self, group: SimGroup) -> bool:
        for a, b in self.pairs:
            group.network.cut(a, b)
        return True

    def heal(self, group: SimGroup) -> None:
        """Do nothing: both sides dial by themselves."""


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """Slow links: messages take longer on some directed pairs."""

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
    """Throttled links: each lane of some directed pairs carries `bytes_s`. At 0 all messages wait for the end."""

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
    """Slow closes: a lost connection of some directed pairs is noticed only after `linger_s`.

    This holds for any cause of the loss.
    """

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
    """Deposed leader: it is paused and cut off until the others have elected another leader, then wakes.

    It stays cut off for a while and does not know of the new leader. Clients reach it.
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
    """Cut between clients and some nodes. The nodes reach each other."""

    nodes: tuple[str, ...]
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        group.unreachable.update(self.nodes)
        return True

    def heal(self, group: SimGroup) -> None:
        group.unreachable.difference_update(self.nodes)
