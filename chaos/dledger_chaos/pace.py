"""The pace of faults in a run; nothing here needs what the component's extra brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_OVERLAP: Final = 2
SHORTEST_PAUSE_S: Final = 0.5
PAUSE_SPREAD_S: Final = 3.5


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast faults follow each other; times in seconds.

    Up to `max_overlap` are in force at a time.  Once there is room for another, a time within `pause_s` passes before
    it strikes: with one at a time and pauses of seconds, faults strike groups that are whole.
    """

    max_overlap: int = MAX_OVERLAP
    pause_s: tuple[float, float] = (SHORTEST_PAUSE_S, SHORTEST_PAUSE_S + PAUSE_SPREAD_S)
    longest_hold_s: float = 60.0
