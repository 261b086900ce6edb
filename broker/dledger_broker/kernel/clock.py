"""Group time: the highest time that the clocks of a majority of all voters have reached, as a leader believes it.

It is what *due* means. One node's clock cannot move it, whatever it shows; two that jump at once are not believed at
once:

1. The clocks of two nodes of three jump a day ahead. Either leads, and knows both.
2. What is due tomorrow stays, for the leader's monotonic clock says that no day has passed.
3. The clocks are set right. The group has fired nothing.

Clocks that keep to what they show are right after all (all nodes slept, somebody corrected them): they are believed
after a minute. `docs/decisions/group-time.md` says what else was weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_STEP_MS: Final = 60_000
"""What differs by more from the time so far, carried on by a monotonic clock, has jumped."""
STANDS_S: Final = 60.0
"""A jump that has stood for so long is believed."""
MAX_GAP_S: Final = 5.0
"""A jump that nobody has looked at for longer has not stood."""


class Carried(NamedTuple):
    """A time in ms since 1970, and the moment of a monotonic clock, in seconds, at which it was that time."""

    ms: int
    at: float

    def on_to(self, now: float) -> int:
        """The time at a later moment of the same clock."""
        return self.ms + int((now - self.at) * 1000)


def reached_by_majority(clocks: Sequence[int | None]) -> int | None:
    """The highest time that a majority of these clocks have reached; None if too few are known.

    `clocks` has one of every voter: who is not known has reached nothing.
    """
    quorum = len(clocks) // 2 + 1
    known = sorted((clock for clock in clocks if clock is not None), reverse=True)
    return known[quorum - 1] if len(known) >= quorum else None


class BelievedTime:
    """What one leader believes, from one look to the next; moments are seconds of its monotonic clock.

    `carried` is the group time that its predecessors left, None if there was none or nobody depends on it: then the
    first look is believed. Otherwise a leader that begins is as careful as one that has led all along:

    1. Two clocks jump a day ahead; their leader does not believe them. 2. It dies, and the other one of the two leads.
    """

    def __init__(self, carried: Carried | None) -> None:
        self._base = carried
        self._ms = 0 if carried is None else carried.ms
        """What was told last."""
        self._jump: Carried | None = None
        """What a jump that is not believed yet has shown first."""
        self._looked_at = 0.0

    def look(self, reached_ms: int, now: float) -> int:
        """Group time, ms since 1970, when the clocks of a majority have reached `reached_ms`.

        It goes back only when a jump back is believed, and stands still while clocks go back by less.
        """
        base = self._base
        if base is None or self._has_stood(base, reached_ms, now):
            self._ms = reached_ms
            self._base, self._jump = Carried(reached_ms, now), None
        elif self._jump is None:
            self._ms = max(self._ms, reached_ms)
            self._base = Carried(reached_ms, now)
        else:
            self._ms = max(self._ms, base.on_to(now))
        self._looked_at = now
        return self._ms

    def _has_stood(self, base: Carried, reached_ms: int, now: float) -> bool:
        """Note whether the clocks have jumped; whether that is to be believed."""
        if abs(reached_ms - base.on_to(now)) <= MAX_STEP_MS:
            self._jump = None
            return False
        jump = self._jump
        if jump is None or now - self._looked_at > MAX_GAP_S or abs(reached_ms - jump.on_to(now)) > MAX_STEP_MS:
            jump = self._jump = Carried(reached_ms, now)
        return now - jump.at >= STANDS_S
