"""Progress of moves in one run of their job. It decides when messages are given up."""

from __future__ import annotations

from typing import Final

STUCK_S: Final = 60.0
"""Time in seconds without progress in the lowest segment, on a full disk, after which its messages are given up."""


class Progress:
    """Progress of moves: when the lowest segment last lost a pending row.

    `log_full` is True if the log took no records in this round. No sweep begins before `sweep_at`.
    """

    def __init__(self, now: float) -> None:
        self.log_full = False
        self.sweep_at = now
        self._lowest: tuple[int, int] | None = None
        self._progress_at_s = now

    def note(self, lowest: tuple[int, int], now: float, *, may_give_up: bool) -> None:
        """Note where the lowest segment with pending rows begins, and how many it has.

        `may_give_up` is True if messages may be given up. Only the rows left in that segment show progress: the
        position to free rises meanwhile, and so does the number of rows below it.
        """
        former, self._lowest = self._lowest, lowest
        if not may_give_up or former is None or lowest[0] != former[0] or lowest[1] < former[1]:
            self._progress_at_s = now

    def is_stuck(self, now: float) -> bool:
        """Return whether moves make no progress."""
        return self.log_full or now - self._progress_at_s >= STUCK_S

    def reset_round(self) -> None:
        """Forget obstacles, since nothing is to be moved now. They prove nothing about the next round:

        1. A sweep finds that the log takes no records.
        2. Before the next check there is room again, and nothing is to be moved; or the messages were delivered.
        3. Hours later old messages are to be trimmed. Pending messages would be given up without an attempt to move
           them.
        """
        self.log_full = False
