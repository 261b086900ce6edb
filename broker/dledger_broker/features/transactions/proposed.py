"""Overlay of the leader's halves: halves that it is about to open, to end or to reopen."""

from __future__ import annotations

from collections.abc import Callable


class ProposedEnds:
    """Ends of halves that are staged and not applied yet, with the requests that wait for their outcome.

    An entry ends with its unit, even if its request was answered before. So two ends of one half are never in the log
    together.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def __contains__(self, position: int) -> bool:
        return position in self._waiting

    def begin(self, position: int) -> None:
        """Note that the end of a half is staged."""
        self._waiting[position] = []

    def wait(self, position: int, callback: Callable[[], None]) -> None:
        """Call `callback` when a staged end is applied or lost."""
        self._waiting[position].append(callback)

    def finish(self, position: int) -> None:
        """Note that an end is applied or lost. Call this before any request is answered."""
        for callback in self._waiting.pop(position):
            callback()


class ProposedHalves:
    """Changes of halves that this leader has in flight."""

    def __init__(self) -> None:
        self.opening = 0
        """Number of halves that are staged to be opened."""
        self.ends = ProposedEnds()
        self.checked: set[int] = set()
        """Halves whose checks are about to be noted."""
