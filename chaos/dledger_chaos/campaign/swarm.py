"""Mixture of a run, drawn from its seed: a few kinds of faults, a few workloads, and the pace of the faults.

A run with all faults and workloads exercises each weak point rarely. Runs with different small mixtures exercise each
of them hard in some run (swarm testing: Groce et al., ISSTA 2012). The most dangerous faults are in every mixture:
kills and power losses of single nodes and of all nodes, and two kinds of partitions.

With half of the seeds, faults strike one at a time, after the group has recovered. These runs show how long clients
wait for a new leader. With the other seeds, two or three faults overlap.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from ..faults import KINDS
from ..pace import Pace
from ..workloads.base import PROXIES
from ..workloads.registry import WORKLOADS

ALWAYS: Final = ("kill-leader", "kill-all", "power-loss-all")
KILLS: Final = ("kill-follower", "kill-majority")
POWER_LOSSES: Final = ("power-loss-leader", "power-loss-follower", "power-loss-majority")
BESIDE: Final = frozenset(kind.name for kind in KINDS.values() if "proxies" in kind.needs)
"""Kinds that need another target than campaigns have."""
PARTITIONS: Final = tuple(name for name in KINDS if name.startswith("partition-") and name not in BESIDE)
MORE: Final = (1, 3)
"""Minimum and maximum number of further kinds that may overlap with other faults."""
ALONE_SHARE: Final = 0.5
"""Share of mixtures with a kind that must be the only fault in the cluster."""

WORKLOAD: Final = "append"
"""The workload of every mixture: it shows how long clients wait."""
MORE_WORKLOADS: Final = (1, 3)
"""Minimum and maximum number of further workloads."""

SINGLE: Final = Pace(max_overlap=1, pause_s=(2.5, 4.0), longest_hold_s=4.0)
"""Pace with one fault at a time. Its pauses exceed `checkers.recovery.SETTLE_S`, so each fault counts as alone."""
LONGEST_HOLD_S: Final = 6.0


@dataclass(frozen=True, slots=True)
class Swarm:
    """Mixture of a run: names of kinds of faults and of workloads, and the pace."""

    faults: tuple[str, ...]
    workloads: tuple[str, ...]
    pace: Pace


def draw_swarm(seed: int) -> Swarm:
    """Return the mixture of a seed, including workloads that this machine may be unable to run."""
    rng = random.Random(f"swarm {seed}")
    chosen = {*ALWAYS, rng.choice(KILLS), rng.choice(POWER_LOSSES), *rng.sample(PARTITIONS, 2)}
    others = [kind for name, kind in KINDS.items() if name not in chosen and name not in BESIDE]
    chosen.update(rng.sample([kind.name for kind in others if not kind.alone], rng.randint(*MORE)))
    if rng.random() < ALONE_SHARE:
        chosen.add(rng.choice([kind.name for kind in others if kind.alone]))
    workloads = [entry for entry in WORKLOADS.values() if entry.target == "broker" and PROXIES not in entry.needs]
    possible = [entry.name for entry in workloads if entry.name != WORKLOAD]
    more = rng.sample(possible, rng.randint(*MORE_WORKLOADS))
    return Swarm(tuple(name for name in KINDS if name in chosen), (WORKLOAD, *more), _draw_pace(rng))


def _draw_pace(rng: random.Random) -> Pace:
    if rng.random() < 0.5:
        return SINGLE
    return Pace(rng.choice((2, 3)), (0.5, rng.choice((2.0, 4.0))), LONGEST_HOLD_S)
