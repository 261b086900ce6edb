"""Clock of a leader's records: store times never go back within a term, and a jump ahead is doubted for a minute.

1. The leader's wall clock jumps ahead by a year, and back a second later.
2. Store times must not go back, so everything that the leader stores from then on would be stamped with that year.

The clock therefore continues as the monotonic clock does until the jump has lasted for `DOUBT_S`. The next term begins
anew.
"""

from __future__ import annotations

from typing import Final

from dledger.environment import Environment

JUMP_MS: Final = 5_000
"""Minimum size in ms of a step ahead that is doubted."""
DOUBT_S: Final = 60.0
"""Time in seconds after which a jump is believed. A machine that was suspended is behind for this long."""


class StoreClock:
    """Store times of one leader. `next_ms` is called for each unit."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._term = 0
        self._last_ms = 0
        self._stamped_at_s = 0.0
        self._doubted_since: float | None = None

    def next_ms(self, term: int) -> int:
        """Return the store time of a unit that is stored now, ms since 1970."""
        wall_ms, now = self._env.wall_ms(), self._env.now()
        if term != self._term:
            self._term, self._last_ms, self._doubted_since = term, wall_ms, None
        else:
            expected_ms = self._last_ms + int((now - self._stamped_at_s) * 1000)
            if wall_ms - expected_ms < JUMP_MS:
                self._doubted_since = None
            else:
                wall_ms = self._believed_ms(wall_ms, expected_ms, now)
            self._last_ms = max(self._last_ms, wall_ms)
        self._stamped_at_s = now
        return self._last_ms

    def _believed_ms(self, wall_ms: int, expected_ms: int, now: float) -> int:
        """Return the time to believe while the wall clock is ahead of the expected time."""
        if self._doubted_since is None:
            self._doubted_since = now
        return expected_ms if now - self._doubted_since < DOUBT_S else wall_ms
