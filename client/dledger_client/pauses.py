"""Queues that a consumer leaves alone for a while, because its application says so."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import MessageQueue


class Pauses:
    """Single queues, or all there are and will be. A queue that goes and comes back is paused as it was."""

    def __init__(self) -> None:
        self._all = False
        self._others: set[MessageQueue] = set()
        """Those for which `_all` does not hold."""

    def __contains__(self, queue: MessageQueue) -> bool:
        return (queue in self._others) != self._all

    def set(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> None:
        """Pause these queues, or let them go on; None: all."""
        if queues is None:
            self._all = paused
            self._others.clear()
        elif paused == self._all:
            self._others.difference_update(queues)
        else:
            self._others.update(queues)
