"""Queues that the application has paused."""

from __future__ import annotations

from collections.abc import Iterable

from ..messages import MessageQueue


class Pauses:
    """Paused queues: single ones, or all present and future ones.

    A queue that is given up and assigned again stays paused.
    """

    def __init__(self) -> None:
        self._all_paused = False
        self._exceptions: set[MessageQueue] = set()
        """Queues for which the opposite of `_all_paused` holds."""

    def __contains__(self, queue: MessageQueue) -> bool:
        return (queue in self._exceptions) != self._all_paused

    def set(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> None:
        """Pause or continue these queues; None: all."""
        if queues is None:
            self._all_paused = paused
            self._exceptions.clear()
        elif paused == self._all_paused:
            self._exceptions.difference_update(queues)
        else:
            self._exceptions.update(queues)
