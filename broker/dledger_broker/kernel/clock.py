"""Group time: the highest time that the clocks of a majority of all voters have reached, as a leader believes it.

It decides what is *due*. In a group of three or more voters, one clock alone cannot move it. Two clocks that jump
together are not believed at once:

1. The clocks of two nodes of three jump a day ahead. One of the two leads, and knows both clocks.
2. Messages that are due tomorrow stay: the leader's monotonic clock says that no day has passed.
3. The clocks are set right. The group has fired nothing.

Clocks that stay at their new time are right after all: for example all nodes slept, or an operator corrected them. They
are believed after a minute. `docs/decisions/group-time.md` says which alternatives were weighed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_STEP_MS: Final = 60_000
"""Maximum difference in ms that does not count as a jump, measured from the last time as a monotonic clock extrapolates
it.
"""
JUMP_BELIEVED_S: Final = 60.0
"""Time in seconds after which a lasting jump is believed."""
MAX_GAP_S: Final = 5.0
"""Maximum gap in seconds between two readings. After a longer gap a jump does not count as lasting."""


class ClockReading(NamedTuple):
    """A time in ms since 1970, with the moment of a monotonic clock, in seconds, at which it was read."""

    ms: int
    at: float

    def extrapolate(self, now: float) -> int:
        """Return the time at a later moment of the same monotonic clock."""
        return self.ms + int((now - self.at) * 1000)


def reached_by_majority(clocks: Sequence[int | None]) -> int | None:
    """Return the highest time that a majority of these clocks have reached, None if too few are known.

    `clocks` has an item for every voter. An unknown clock counts as having reached nothing.
    """
    quorum = len(clocks) // 2 + 1
    known = sorted((clock for clock in clocks if clock is not None), reverse=True)
    return known[quorum - 1] if len(known) >= quorum else None


class BelievedTime:
    """Belief of one leader about group time, updated with each reading. Moments are seconds of its monotonic clock.

    `carried` is the group time that earlier leaders left. If it is None, because the log has no group time or nothing
    depends on it, the first reading is believed. Otherwise a new leader is as careful as its predecessor:

    1. Two clocks jump a day ahead, and the leader does not believe them.
    2. The leader dies, and the other of the two nodes leads.
    3. The new leader compares its readings with `carried`, and does not believe them at once either.
    """

    def __init__(self, carried: ClockReading | None) -> None:
        self._base = carried
        self._ms = 0 if carried is None else carried.ms
        """Group time as it was returned last."""
        self._jump: ClockReading | None = None
        """First reading of a jump that is not believed yet."""
        self._read_at_s = 0.0

    def look(self, reached_ms: int, now: float) -> int:
        """Return group time, ms since 1970, when the clocks of a majority have reached `reached_ms`.

        Group time goes back only when a jump back is believed. While clocks go back by less than a jump, it does not
        change.
        """
        base = self._base
        if base is None or self._has_jump_lasted(base, reached_ms, now):
            self._ms = reached_ms
            self._base, self._jump = ClockReading(reached_ms, now), None
        elif self._jump is None:
            self._ms = max(self._ms, reached_ms)
            self._base = ClockReading(reached_ms, now)
        else:
            self._ms = max(self._ms, base.extrapolate(now))
        self._read_at_s = now
        return self._ms

    def _has_jump_lasted(self, base: ClockReading, reached_ms: int, now: float) -> bool:
        """Note whether the clocks have jumped. Return whether the jump has lasted long enough to be believed."""
        if abs(reached_ms - base.extrapolate(now)) <= MAX_STEP_MS:
            self._jump = None
            return False
        jump = self._jump
        if jump is None or now - self._read_at_s > MAX_GAP_S or abs(reached_ms - jump.extrapolate(now)) > MAX_STEP_MS:
            jump = self._jump = ClockReading(reached_ms, now)
        return now - jump.at >= JUMP_BELIEVED_S
