"""Faults that others make up together, in a fixed order and at fixed times: what chance brings about rarely."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from ..disk.control import Rule
from ..target import Target
from .base import Fault, FaultKind, Surroundings
from .disk import DiskRules
from .members import Removal
from .network import Cut, between
from .power import PowerLoss
from .process import Pause

ELECTION_S: Final = (2.5, 6.0)
"""Bounds of how long a deposed leader stands still: the others have elected another one, and clients have found it."""
SLOW_SYNC_S: Final = 3.0
JOINING_S: Final = (0.2, 0.8)
"""Bounds of how long removed members have to join again, while the syncs of the only voter are slow.  They are learners
by then: nobody else can lead."""


@dataclass(frozen=True, slots=True)
class Act:
    """A part of a composed fault: `after_s` after the part before it, a fault is injected, or is healed."""

    after_s: float
    fault: Fault
    heals: bool = False


@dataclass(frozen=True, slots=True)
class Composed:
    """Faults injected and healed one after the other; what is in force at the end is healed in the opposite order."""

    nodes: tuple[str, ...]
    acts: tuple[Act, ...]

    async def inject(self, target: Target) -> None:
        """See `Fault.inject`; returns once the last part is over."""
        for act in self.acts:
            await asyncio.sleep(act.after_s)
            await (act.fault.heal(target) if act.heals else act.fault.inject(target))

    async def heal(self, target: Target) -> None:
        """See `Fault.heal`."""
        for fault in reversed(dict.fromkeys(act.fault for act in self.acts)):
            await fault.heal(target)


def _deposed(s: Surroundings) -> Composed:
    """The leader is stopped and cut off from the others, which elect another one.

    It wakes, still cut off, and believes that it leads: until it misses the others' answers, clients reach it.
    """
    leader = s.a_leader()
    stopped = Pause((leader,))
    cut_off = Cut(between((leader,), s.others(leader)), s.rng.choice(("swallow", "hold")), (leader,))
    acts = Act(0.0, stopped), Act(0.0, cut_off), Act(s.rng.uniform(*ELECTION_S), stopped, heals=True)
    return Composed((leader,), acts)


def _shrunk(s: Surroundings) -> Composed:
    """All but the leader are removed, and its syncs become slow while they join again; then it loses power.

    It is the only voter: what was acknowledged meanwhile must be on its disk, whoever else has it.
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
        "the leader stands still and is cut off until another one leads, and wakes without knowing",
        _deposed,
        (1.5, 4.0),
        needs=frozenset({"process"}),
    ),
    FaultKind(
        "shrunk-group",
        "membership",
        "all but the leader are removed and join again, while its syncs are slow and it loses power",
        _shrunk,
        (0.0, 1.0),
        alone=True,
        needs=frozenset({"disk", "power"}),
    ),
)
