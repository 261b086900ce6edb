"""Rate limiter for range reads: reading old data gives way to incoming messages.

A reader that takes all it can get, on or near the brokers' machines, takes the cores that sends need. A node does not
know who else is there, so it sets its pace by its own measurements. These are the growth of its log, and its waits for
a core. If its log grows fast and the node waits, it serves less and less, down to the configured minimum. Otherwise it
serves more and more, up to all requested bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dledger.environment import Environment

WINDOW_S: Final = 0.1
"""Minimum interval between two measurements."""
MIN_TAKEN_BYTES_PER_S: Final = 1 << 20
"""Minimum growth of the log, per second, at which range reads give way."""
MIN_WAITED_SHARE: Final = 0.05
"""Minimum share of time waited for a core at which range reads give way. With enough cores it is about 0.01."""
SLOWER: Final = 0.1
"""Factor of the pace for a window in which range reads give way."""
FASTER: Final = 1.5
"""Factor of the pace for any other window."""
FREE_BYTES_PER_S: Final = float(1 << 30)
"""Minimum pace at which no read is held back."""
READS_PER_S: Final = 4
"""Number of reads per second for a single reader. With several readers, each read is smaller."""
MIN_READ_BYTES: Final = 64 << 10
MAX_HOLD_S: Final = 1.0
"""Maximum time in seconds for which a read is held, however many reads there are."""


class Turn(NamedTuple):
    """Time that a read has to wait, and the number of bytes that it may then have."""

    hold_s: float
    max_bytes: int


class RangePace:
    """Rate limiter as the module describes it. `taken()` is a position that grows with the log.

    `least_bytes_per_s` is the minimum pace. 0 means that no read is ever held back.
    """

    def __init__(self, env: Environment, taken: Callable[[], int], least_bytes_per_s: int) -> None:
        self._env = env
        self._taken = taken
        self._least_bytes_per_s = least_bytes_per_s
        self._bytes_per_s = FREE_BYTES_PER_S
        self._due = 0.0
        self._last_measurement = self._measure()

    def turn(self, wanted_bytes: int) -> Turn:
        """Return the turn of a read that arrives now."""
        self._adapt()
        if self._bytes_per_s >= FREE_BYTES_PER_S:
            return Turn(0.0, wanted_bytes)
        now = self._env.now()
        hold_s = min(MAX_HOLD_S, max(0.0, self._due - now))
        size = max(MIN_READ_BYTES, int(self._bytes_per_s / READS_PER_S * (1 - hold_s / MAX_HOLD_S)))
        turn = Turn(hold_s, min(wanted_bytes, size))
        self._due = now + hold_s + turn.max_bytes / self._bytes_per_s
        return turn

    def served(self, turn: Turn, size: int) -> None:
        """Correct the time of the next read by the actual size of this read.

        The end of a range is smaller than its turn, and a single large entry is larger.
        """
        self._due += (size - turn.max_bytes) / self._bytes_per_s

    def _measure(self) -> tuple[float, float, int]:
        return self._env.now(), self._env.waited_for_core_s(), self._taken()

    def _adapt(self) -> None:
        at, waited_s, taken = self._last_measurement
        if not self._least_bytes_per_s or self._env.now() - at < WINDOW_S:
            return
        self._last_measurement = self._measure()
        elapsed_s = self._last_measurement[0] - at
        if (
            self._last_measurement[1] - waited_s >= MIN_WAITED_SHARE * elapsed_s
            and self._last_measurement[2] - taken >= MIN_TAKEN_BYTES_PER_S * elapsed_s
        ):
            self._bytes_per_s = max(self._least_bytes_per_s, self._bytes_per_s * SLOWER)
        else:
            windows = min(elapsed_s / WINDOW_S, 100)
            self._bytes_per_s = min(FREE_BYTES_PER_S, self._bytes_per_s * FASTER**windows)
