"""Interface of faults, and how one is drawn.

A fault is a frozen value: what it does is fixed when it is drawn, and two of the same value do the same.  `inject`
makes it so, `heal` ends it; both may be called on a cluster in any state, and `heal` after a failed `inject`.  Faults
of different values overlap freely, unless their kind says that it wants the cluster to itself.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..target import FaultClass, Target
from ..toxiproxy.mesh import NAMESRV


class Fault(Protocol):
    """A fault that is ready to be injected."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Whom it hits."""

    async def inject(self, target: Target) -> None:
        """Make it so; raises `ChaosError` if the target does not let itself be harmed that way."""

    async def heal(self, target: Target) -> None:
        """End it: afterwards nothing of it is in the way of the cluster."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a fault is drawn from: one group as it is at that moment, and the randomness of this one draw.

    `struck` are all that faults hit which are in force.
    """

    rng: random.Random
    members: tuple[str, ...]
    leader: str | None
    name_servers: tuple[str, ...] = (NAMESRV,)
    struck: frozenset[str] = frozenset()

    def one(self) -> str:
        """Any node."""
        return self.rng.choice(self.members)

    def a_leader(self) -> str:
        """The leader, or any node while there is none."""
        return self.leader or self.one()

    def a_follower(self) -> str:
        """Any node but the leader."""
        return self.rng.choice([member for member in self.members if member != self.leader])

    def others(self, node: str) -> tuple[str, ...]:
        """Everyone but `node`."""
        return tuple(member for member in self.members if member != node)

    def a_name_server(self) -> str:
        """Any name server; while one is struck that one, so that another one lives where there are two."""
        return self.rng.choice([one for one in self.name_servers if one in self.struck] or self.name_servers)

    def majority(self) -> tuple[str, ...]:
        """The smallest number of nodes without which nothing is acknowledged."""
        return tuple(sorted(self.rng.sample(self.members, len(self.members) // 2 + 1)))


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A line of the registry.

    `hold_s` bounds how long such a fault is left in force.  `alone`: the promises that it tests hold only while nothing
    else is wrong, so that it waits for a healthy cluster, and everything else waits until it is healed.  `needs` are
    further classes of faults that a target must be able to take.
    """

    name: str
    family: FaultClass
    summary: str
    draw: Callable[[Surroundings], Fault]
    hold_s: tuple[float, float] = (1.0, 5.0)
    alone: bool = False
    needs: frozenset[FaultClass] = frozenset()


def as_json(fault: Fault) -> dict[str, object]:
    """Return a fault's values, with the name of its class as `type`."""
    names = [field.name for field in dataclasses.fields(type(fault))]  # type: ignore[arg-type]  # every fault is one
    return {"type": type(fault).__name__, **{name: getattr(fault, name) for name in names}}
