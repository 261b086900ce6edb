"""Changes of a group under load: transfers of leadership, and removed members that join again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..convergence import wait_caught_up
from ..target import Target
from .base import FaultKind, Surroundings


@dataclass(frozen=True, slots=True)
class Transfer:
    """Leadership is transferred to the one node of `nodes`; there is nothing to heal."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        await target.transfer_leadership(self.nodes[0])

    async def heal(self, target: Target) -> None:
        """End the fault."""
        del target


@dataclass(frozen=True, slots=True)
class Removal:
    """A running voter is removed, and joins again as a learner. `heal` waits until it is a voter again."""

    nodes: tuple[str, ...]

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        await target.remove_member(self.nodes[0])

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await wait_caught_up(target, self.nodes[0])


def _draw_follower(s: Surroundings) -> tuple[str, ...]:
    return (s.a_follower(),)


KINDS: Final = (
    FaultKind("transfer", "membership", "leadership handed over", lambda s: Transfer(_draw_follower(s)), (0.0, 1.0)),
    FaultKind(
        "remove-follower",
        "membership",
        "a follower removed; it joins again",
        lambda s: Removal(_draw_follower(s)),
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
