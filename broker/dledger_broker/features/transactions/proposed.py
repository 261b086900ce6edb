"""The leader's overlay of halves: those that it is about to open, and those that it is about to end or reopen."""

from __future__ import annotations

from collections.abc import Callable


class ProposedEnds:
    """Ends of halves that are staged and not applied yet, and who waits for their outcome.

    An entry ends with its unit, whatever was answered meanwhile: two ends of one half never are in the log together.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def __contains__(self, position: int) -> bool:
        return position in self._waiting

    def begin(self, position: int) -> None:
        """The end of a half is staged."""
        self._waiting[position] = []

    def wait(self, position: int, told: Callable[[], None]) -> None:
        """Have somebody told when an end that is staged is applied or lost."""
        self._waiting[position].append(told)

    def finish(self, position: int) -> None:
        """An end is applied or lost; call this before anybody is answered."""
        for told in self._waiting.pop(position):
            told()


class ProposedHalves:
    """What is in flight of halves on this leader."""

    def __init__(self) -> None:
        self.opening = 0
        """Halves that are staged to be opened."""
        self.ends = ProposedEnds()
        self.checked: set[int] = set()
        """Halves of which a check is about to be noted."""
