"""Changes of a group under load: leadership handed over, members removed, members that join again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..convergence import wait_caught_up
from ..target import Target
from .base import FaultKind, Surroundings


@dataclass(frozen=True, slots=True)
class Transfer:
    """Leadership is handed over to the one node of `nodes`; there is nothing to heal."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        await target.transfer_leadership(self.nodes[0])

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        del target


@dataclass(frozen=True, slots=True)
class Removal:
    """A voter is removed while it runs, and joins again as a learner; healed when it is a voter again."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`."""
        await target.remove_member(self.nodes[0])

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        await wait_caught_up(target, self.nodes[0])


def _any_but_leader(s: Surroundings) -> tuple[str, ...]:
    return (s.a_follower(),)


KINDS: Final = (
    FaultKind("transfer", "membership", "leadership handed over", lambda s: Transfer(_any_but_leader(s)), (0.0, 1.0)),
    FaultKind(
        "remove-follower",
        "membership",
        "a follower removed; it joins again",
        lambda s: Removal(_any_but_leader(s)),
        (0.0, 1.0),
        alone=True,
    ),
    FaultKind(
        "remove-leader",
        "membership",
        "the leader removed; it joins again",
        lambda s: Removal((s.a_leader(),)),
        (0.0, 1.0),
        alone=True,
    ),
)
