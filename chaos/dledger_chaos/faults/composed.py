"""Faults composed of others, in a fixed order and at fixed times that chance rarely brings about."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ..disk.control import Rule
from ..errors import ChaosError
from ..target import Target
from .base import Fault, FaultKind, Surroundings
from .disk import DiskRules
from .members import Removal
from .network import Cut, between
from .power import PowerLoss
from .process import Pause

ELECTION_S: Final = (2.5, 6.0)
"""Minimum and maximum pause in seconds of a deposed leader. Meanwhile others elect a leader, and clients find it."""
SLOW_SYNC_S: Final = 3.0
JOINING_S: Final = (0.2, 0.8)
"""Minimum and maximum time in seconds between the slow-down of the only voter's syncs and the loss of its power.

Meanwhile the removed members join again as learners, so no other node can lead.
"""


@dataclass(frozen=True, slots=True)
class Act:
    """A part of a composed fault: `after_s` after the previous part, a fault is injected or healed."""

    after_s: float
    fault: Fault
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Composed:
    """Faults that are injected and healed one after another. `heal` heals all of them in the opposite order.

    A part may be unable to heal before the others have: no node starts while another part keeps its disk full. Such a
    part is healed again at the end.
    """

    nodes: tuple[str, ...]
    acts: tuple[Act, ...]

    async def inject(self, target: Target) -> None:
        """Inject the parts; return once the last part is over."""
        for act in self.acts:
            await asyncio.sleep(act.after_s)
            await (act.fault.heal(target) if act.heals else act.fault.inject(target))

    async def heal(self, target: Target) -> None:
        """End the fault."""
        refused = []
        for fault in reversed(dict.fromkeys(act.fault for act in self.acts)):
            try:
                await fault.heal(target)
            except (ChaosError, OSError):
                refused.append(fault)
        for fault in refused:
            await fault.heal(target)


def _draw_deposed_leader(s: Surroundings) -> Composed:
    """Pause the leader and cut it off from the other nodes, which elect a new leader.

    The old leader is resumed, still cut off, and believes that it leads. Clients reach it until it notices that its
    followers do not answer.
    """
    leader = s.a_leader()
    stopped = Pause((leader,))
    cut_off = Cut(between((leader,), s.others(leader)), s.rng.choice(("swallow", "hold")), (leader,))
    acts = Act(0.0, stopped), Act(0.0, cut_off), Act(s.rng.uniform(*ELECTION_S), stopped, heals=True)
    return Composed((leader,), acts)


def _draw_shrunk_group(s: Surroundings) -> Composed:
    """Remove all nodes except the leader, slow down its syncs while they rejoin, then cut its power.

    The leader is the only voter then, so everything that it acknowledges must be on its disk.
    """
    leader = s.a_leader()
    others = s.others(leader)
    slow = DiskRules((leader,), (Rule("sync", delay_ms=int(SLOW_SYNC_S * 1000)),))
    acts = (
        *(Act(0.0, Removal((other,))) for other in others),
        Act(0.0, slow),
        Act(s.rng.uniform(*JOINING_S), PowerLoss((leader,), 0.0, 0)),
        Act(0.0, slow, heals=True),
    )
    return Composed((leader, *others), acts)


KINDS: Final = (
    FaultKind(
        "deposed-leader",
        "network",
        "a stopped leader is cut off until another node leads, then wakes and does not know it",
        _draw_deposed_leader,
        (1.5, 4.0),
        needs=frozenset({"process"}),
    ),
    FaultKind(
        "shrunk-group",
        "membership",
        "all but the leader are removed and join again, while its syncs are slow and it loses power",
        _draw_shrunk_group,
        (0.0, 1.0),
        alone=True,
        needs=frozenset({"disk", "power"}),
    ),
)
