"""Surroundings of a seed: sizes, times and habits of file systems, which vary by seed independently of its plan.

They are drawn from a separate source of randomness, so that a seed keeps the rest of its plan. A seed that is stored
with its kinds of faults has no surroundings: it keeps its meaning.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from dledger_sim.log.plan import Plan

SEGMENTS: Final = (64 << 10, 64 << 10, 128 << 10, 256 << 10)
"""Sizes of segments, in bytes."""
TIMES_MS: Final = ((100, 600, 1000), (100, 600, 1000), (30, 150, 300), (250, 900, 2500))
"""Interval of heartbeats, and minimum and maximum of an election's time limit, in milliseconds."""
RESERVES: Final = (64 << 20, 16 << 10)
"""Disk space that is kept back, in bytes. At most a quarter of a segment is used."""
SCRUBS_MS: Final = (2000, 2000, 500)
"""Pauses between two verifications of the whole log, in milliseconds."""


def with_surroundings(plan: Plan, random: Random) -> Plan:
    """Return the plan on machines that are drawn."""
    heartbeat_ms, election_min_ms, election_max_ms = random.choice(TIMES_MS)
    group = replace(
        plan.group,
        segment_bytes=random.choice(SEGMENTS),
        heartbeat_ms=heartbeat_ms,
        election_min_ms=election_min_ms,
        election_max_ms=election_max_ms,
        reserve_bytes=random.choice(RESERVES),
        scrub_interval_ms=random.choice(SCRUBS_MS),
        names_in_order=random.random() < 0.5,
        drops_failed_pages=random.random() < 0.3,
    )
    return replace(plan, group=group)
