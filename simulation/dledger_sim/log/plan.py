"""Plan of a run, drawn from a seed: every seed has its own group and its own mixture and rates of faults."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

from dledger_sim.log.group import GroupSettings
from dledger_sim.log.kinds import KINDS, RARE


@dataclass(frozen=True, slots=True)
class Plan:
    """Group and faults of a run."""

    group: GroupSettings
    kinds: dict[str, float]
    """Weights of the kinds of faults."""
    interval_s: float
    """Mean time between two faults, in seconds."""
    most_at_once: int
    trim_s: float
    """Mean time between two trims of the log, in seconds."""
    sync_s: float
    """Mean duration of an fdatasync without faults, in seconds."""


def draw_plan(random: Random, kinds: Collection[str] | None = None) -> Plan:
    """Draw a plan with a few kinds of faults. Swarm testing: a few kinds at a time find more than all kinds always.

    `kinds` are the kinds to draw from, by default all.
    """
    nodes, founders = random.choices(((3, 3), (5, 5), (3, 1)), (8, 1, 1))[0]
    group = GroupSettings(
        nodes,
        founders,
        snapshot_interval_ms=random.choice((100, 300, 2000)),
        recent_bytes=random.choice((4 << 10, 48 << 10, 1 << 20)),
        sizes_window=random.choice((4, 64, 4096)),
        call_cost_s=random.choice((0.0, 0.0, 0.0, 0.0005)),
        clock_drift=random.choice((0.0, 0.01, 0.05)),
    )
    chosen = random.sample(sorted(KINDS if kinds is None else kinds), random.randint(2, 8))
    return Plan(
        group,
        {kind: random.uniform(0.2, 1.0) * RARE.get(kind, 1.0) for kind in chosen},
        interval_s=random.choice((0.15, 0.4, 1.0)),
        most_at_once=random.choice((1, 2, 4)),
        trim_s=random.choice((0.3, 1.0, 4.0)),
        sync_s=random.choice((0.0003, 0.002, 0.01)),
    )
