"""Power losses: nodes are killed at one moment, and lose all data that they had not synced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ..target import Target
from .base import FaultKind, Surroundings

KEPT_SHARES: Final = (0.0, 0.0, 0.1, 0.5, 0.9)
"""Probabilities with which a sector of an unsynced write has reached the disk."""


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """Nodes are killed at one moment, and lose their unsynced writes. A start of the nodes heals the fault.

    Each sector of an unsynced write survives with probability `kept_share`, drawn from `seed`.
    """

    nodes: tuple[str, ...]
    kept_share: float
    seed: int

    async def inject(self, target: Target) -> None:
        """Inject the fault."""
        await target.lose_power(self.nodes, self.kept_share, self.seed)

    async def heal(self, target: Target) -> None:
        """End the fault."""
        await asyncio.gather(*map(target.start_node, self.nodes))


def _draw_loss(s: Surroundings, nodes: tuple[str, ...]) -> PowerLoss:
    return PowerLoss(nodes, s.rng.choice(KEPT_SHARES), s.rng.getrandbits(32))


KINDS: Final = (
    FaultKind("power-loss-leader", "power", "the leader loses power", lambda s: _draw_loss(s, (s.a_leader(),))),
    FaultKind("power-loss-follower", "power", "a follower loses power", lambda s: _draw_loss(s, (s.a_follower(),))),
    FaultKind("power-loss-majority", "power", "a majority loses power at once", lambda s: _draw_loss(s, s.majority())),
    FaultKind(
        "power-loss-all", "power", "all nodes lose power at once", lambda s: _draw_loss(s, s.members), (0.0, 2.0)
    ),
)
