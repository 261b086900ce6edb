"""Interface of faults, and of the functions that draw them.

A fault is a frozen value: its effect is fixed when it is drawn, and equal faults have the same effect. `inject` begins
it, and `heal` ends it. Both may be called on a cluster in any state, and `heal` even after a failed `inject`. Different
faults overlap freely, unless their kind must be the only fault in the cluster.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..target import FaultClass, Target
from ..toxiproxy.mesh import NAMESRV, PROXY_NAMES


class Fault(Protocol):
    """A fault that is ready to be injected."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the fault hits."""

    async def inject(self, target: Target) -> None:
        """Inject the fault. Raises `ChaosError` if the target cannot suffer it."""

    async def heal(self, target: Target) -> None:
        """End the fault. Afterwards it has no effect on the cluster."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Input of a draw: one group at that moment, and the randomness of this draw.

    `struck` are the nodes that faults in force have hit.
    """

    rng: random.Random
    members: tuple[str, ...]
    leader: str | None
    name_servers: tuple[str, ...] = (NAMESRV,)
    struck: frozenset[str] = frozenset()
    proxies: tuple[str, ...] = PROXY_NAMES

    def one(self) -> str:
        """Return any node."""
        return self.rng.choice(self.members)

    def a_leader(self) -> str:
        """Return the leader, or any node while there is no leader."""
        return self.leader or self.one()

    def a_follower(self) -> str:
        """Return any node except the leader."""
        return self.rng.choice([member for member in self.members if member != self.leader])

    def others(self, node: str) -> tuple[str, ...]:
        """Return all nodes except `node`."""
        return tuple(member for member in self.members if member != node)

    def a_name_server(self) -> str:
        """Return a name server that a fault has hit already, else any. So one of two name servers stays alive."""
        return self.rng.choice([one for one in self.name_servers if one in self.struck] or self.name_servers)

    def a_proxy(self) -> str:
        """Return a proxy that a fault has hit already, else any. So one of two proxies stays usable."""
        return self.rng.choice([one for one in self.proxies if one in self.struck] or self.proxies)

    def majority(self) -> tuple[str, ...]:
        """Return a random majority of the members, as small as possible."""
        return tuple(sorted(self.rng.sample(self.members, len(self.members) // 2 + 1)))


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A line of the registry.

    `hold_s` is the minimum and maximum time in seconds for which such a fault is in force. A kind that is `alone` tests
    promises that hold only without other faults. It waits for a healthy cluster, and all other faults wait until it is
    healed. `needs` are further classes of faults that a target must be able to suffer.
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
