"""Draws from one seed what a run does: a few kinds of faults, a few workloads, and how fast faults follow each other.

A mixture of everything hits each weak point rarely; different mixtures of few things hit each of them hard in some run
(swarm testing: Groce et al., ISSTA 2012).  What is most likely to lose something is in every mixture: kills of the
leader and of all nodes, losses of power of one kind and of all nodes, and two kinds of partitions.

Half of the seeds let one fault strike at a time, at a group that is whole again: they show how long clients wait for a
new leader.  The others let two or three overlap.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from ..faults import KINDS
from ..pace import Pace
from ..workloads.registry import WORKLOADS

ALWAYS: Final = ("kill-leader", "kill-all", "power-loss-all")
KILLS: Final = ("kill-follower", "kill-majority")
POWER_LOSSES: Final = ("power-loss-leader", "power-loss-follower", "power-loss-majority")
PARTITIONS: Final = tuple(name for name in KINDS if name.startswith("partition-"))
MORE: Final = (1, 3)
"""As many other kinds, at the least and at the most, that leave room for others at the same time."""
ALONE_SHARE: Final = 0.5
"""The share of mixtures with a kind that wants the cluster to itself."""

WORKLOAD: Final = "append"
"""The workload of every mixture: the one that shows how long clients wait."""
MORE_WORKLOADS: Final = (1, 3)

SINGLE: Final = Pace(max_overlap=1, pause_s=(2.5, 4.0), longest_hold_s=4.0)
"""A pause here is longer than the time after which a fault counts as alone: `checkers.recovery.SETTLE_S`."""
LONGEST_HOLD_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Swarm:
    """What a run does: names of kinds of faults and of workloads, and the pace."""

    faults: tuple[str, ...]
    workloads: tuple[str, ...]
    pace: Pace


def draw_swarm(seed: int) -> Swarm:
    """Return the mixture of a seed.  Some workloads cannot be run on every machine."""
    rng = random.Random(f"swarm {seed}")
    chosen = {*ALWAYS, rng.choice(KILLS), rng.choice(POWER_LOSSES), *rng.sample(PARTITIONS, 2)}
    others = [kind for name, kind in KINDS.items() if name not in chosen]
    chosen.update(rng.sample([kind.name for kind in others if not kind.alone], rng.randint(*MORE)))
    if rng.random() < ALONE_SHARE:
        chosen.add(rng.choice([kind.name for kind in others if kind.alone]))
    possible = [entry.name for entry in WORKLOADS.values() if entry.target == "broker" and entry.name != WORKLOAD]
    more = rng.sample(possible, rng.randint(*MORE_WORKLOADS))
    return Swarm(tuple(name for name in KINDS if name in chosen), (WORKLOAD, *more), _pace(rng))


def _pace(rng: random.Random) -> Pace:
    if rng.random() < 0.5:
        return SINGLE
    return Pace(rng.choice((2, 3)), (0.5, rng.choice((2.0, 4.0))), LONGEST_HOLD_S)
