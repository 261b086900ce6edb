"""Rate limiter for ranges of the log: reading what is old gives way to what comes in.

A reader that takes all it can get, on the machines of the brokers or near them, takes the cores that sends need. What a
node serves follows from two things that it can tell without knowing who else is there: how much of the log it takes in,
and how long it had to wait for a core. Where it takes in much and waits, it serves less and less, down to what is
configured; otherwise more and more, up to all that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dledger.environment import Environment

WINDOW_S: Final = 0.1
"""How often a node looks at itself, at most."""
MIN_TAKEN_BYTES_PER_S: Final = 1 << 20
"""A node that takes in less than this does not have to be left alone."""
MIN_WAITED_SHARE: Final = 0.05
"""The part of the time for which a node waits for a core if there are too few. With enough of them it is about 0.01."""
SLOWER: Final = 0.1
"""What becomes of the pace in a window in which reading has to give way."""
FASTER: Final = 1.5
"""What becomes of it in any other."""
FREE_BYTES_PER_S: Final = float(1 << 30)
"""A pace at which nothing is held back."""
READS_PER_S: Final = 4
"""A reader that is alone gets so many pieces a second; where there are others, they are smaller."""
MIN_READ_BYTES: Final = 64 << 10
MAX_HOLD_S: Final = 1.0
"""For so long a read is held at most, however many there are."""


class Turn(NamedTuple):
    """How long a read has to wait, and how many bytes it may then have."""

    hold_s: float
    max_bytes: int


class RangePace:
    """See the module's description. `taken()` is a position that grows by what the node takes in.

    `least_bytes_per_s` is the slowest pace; 0 means that nothing is ever held back.
    """

    def __init__(self, env: Environment, taken: Callable[[], int], least_bytes_per_s: int) -> None:
        self._env = env
        self._taken = taken
        self._least_bytes_per_s = least_bytes_per_s
        self._bytes_per_s = FREE_BYTES_PER_S
        self._due = 0.0
        self._looked = self._look()

    def turn(self, wanted_bytes: int) -> Turn:
        """The turn of a read that comes now."""
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
        """A read got another size than it might have: less at the end of a range, more if one entry is more."""
        self._due += (size - turn.max_bytes) / self._bytes_per_s

    def _look(self) -> tuple[float, float, int]:
        return self._env.now(), self._env.waited_for_core_s(), self._taken()

    def _adapt(self) -> None:
        at, waited_s, taken = self._looked
        if not self._least_bytes_per_s or self._env.now() - at < WINDOW_S:
            return
        self._looked = self._look()
        elapsed_s = self._looked[0] - at
        if (
            self._looked[1] - waited_s >= MIN_WAITED_SHARE * elapsed_s
            and self._looked[2] - taken >= MIN_TAKEN_BYTES_PER_S * elapsed_s
        ):
            self._bytes_per_s = max(self._least_bytes_per_s, self._bytes_per_s * SLOWER)
        else:
            windows = min(elapsed_s / WINDOW_S, 100)
            self._bytes_per_s = min(FREE_BYTES_PER_S, self._bytes_per_s * FASTER**windows)
