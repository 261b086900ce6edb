"""Progress of moves, as one run of their job has seen it: what says that messages are to be given up."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.delay.commands import TimerRow

STUCK_S: Final = 60.0
"""So long a disk is too full, and the lowest segment loses nothing, before what waits is given up."""
GIVE_UP_S: Final = 600.0
"""A record that cannot be read for so long is counted as lost."""


class Progress:
    """Since when the lowest segment with pending rows has lost none, and since when records are unreadable.

    `log_full`: the log took no records in this round. `sweep_at`: no sweep begins before that.
    """

    def __init__(self, now: float) -> None:
        self.log_full = False
        self.sweep_at = now
        self._lowest: tuple[int, int] | None = None
        self._lost_at = now
        self._unreadable_since: dict[int, float] = {}

    def note(self, lowest: tuple[int, int], now: float, *, must_go: bool) -> None:
        """The lowest segment with pending rows, and how many it has; `must_go`: the log is to be trimmed at any price.

        Only how many are left in that segment says whether anything moves: the position of the trim rises meanwhile,
        and with it what is to be moved.
        """
        before, self._lowest = self._lowest, lowest
        if not must_go or before is None or lowest[0] != before[0] or lowest[1] < before[1]:
            self._lost_at = now

    def is_stuck(self, now: float) -> bool:
        """Whether moves get nowhere."""
        return self.log_full or now - self._lost_at >= STUCK_S

    def is_given_up(self, row: TimerRow, now: float) -> bool:
        """The record of a row could not be read; whether that has been so for too long."""
        return now - self._unreadable_since.setdefault(row[1], now) >= GIVE_UP_S

    def round_is_over(self) -> None:
        """Nothing is to be moved now. What was in the way of that says nothing of the next time.

        1. A sweep finds that the log takes no records. 2. Before the next look room is made, and nothing is wanted any
        more, or the messages are delivered. 3. Hours later old messages are to be trimmed: without a single try to move
        them, those that wait there would be given up.
        """
        self.log_full = False
        self._unreadable_since.clear()
