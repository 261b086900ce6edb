"""Three different faults at once, each of another family."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from . import clock, disk, network, power, process
from .base import FaultKind, Surroundings
from .composed import Act, Composed

_KINDS_BY_FAMILY: Final = {
    "process": ("kill-leader", "kill-follower", "terminate-leader", "pause-leader", "pause-follower"),
    "network": ("partition-node", "partition-one-way", "latency", "bandwidth", "reset", "half-open"),
    "disk": ("disk-full-one", "disk-full-all", "disk-filled", "fsync-slow"),
    "power": ("power-loss-leader", "power-loss-follower"),
    "clock": ("clock-jump", "clock-drift"),
}
"""Kinds that may strike at any time, beside any others."""
_KINDS_BY_NAME: Final = {kind.name: kind for family in (process, network, disk, power, clock) for kind in family.KINDS}


@dataclass(frozen=True, slots=True)
class Together(Composed):
    """Faults of these `kinds` at once. Checkers excuse what one of them explains, so the history names the kinds."""

    kinds: tuple[str, ...]


def _draw_three(s: Surroundings) -> Together:
    families = s.rng.sample(sorted(_KINDS_BY_FAMILY), 3)
    kinds = [s.rng.choice(_KINDS_BY_FAMILY[family]) for family in families]
    faults = [_KINDS_BY_NAME[kind].draw(s) for kind in kinds]
    nodes = tuple(sorted({node for fault in faults for node in fault.nodes}))
    return Together(nodes, tuple(Act(0.0, fault) for fault in faults), tuple(kinds))


KINDS: Final = (
    FaultKind(
        "three-at-once",
        "process",
        "three faults of different families at once",
        _draw_three,
        (2.0, 8.0),
        needs=frozenset({"network", "disk", "power", "clock"}),
    ),
)
