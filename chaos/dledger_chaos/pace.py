"""The pace of faults in a run. This module needs no other package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_OVERLAP: Final = 2
SHORTEST_PAUSE_S: Final = 0.5
PAUSE_SPREAD_S: Final = 3.5


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of faults; times in seconds.

    Up to `max_overlap` faults are in force at a time. Once another fault may begin, a random time within `pause_s`
    passes before it strikes. With one fault at a time and pauses of seconds, faults strike a group that has recovered.
    """

    max_overlap: int = MAX_OVERLAP
    pause_s: tuple[float, float] = (SHORTEST_PAUSE_S, SHORTEST_PAUSE_S + PAUSE_SPREAD_S)
    longest_hold_s: float = 60.0
