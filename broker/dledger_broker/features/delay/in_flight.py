"""Overlay of due messages: rows that this leader has proposed to fire, cancel or move, and that are not applied yet."""

from __future__ import annotations

from collections.abc import Collection


class RowsInFlight:
    """Rows by the positions of their records. An entry ends with its unit, not with the run of the job that staged it:
    whatever a later run of this leader decides must see it.
    """

    def __init__(self) -> None:
        self._positions: set[int] = set()
        self._fires = 0
        self._moves = 0

    def __contains__(self, position: int) -> bool:
        """Whether something is on its way for the row of a record."""
        return position in self._positions

    @property
    def firing(self) -> bool:
        """A unit of messages that are due is on its way."""
        return self._fires > 0

    @property
    def moving(self) -> bool:
        """A unit of moved messages is on its way."""
        return self._moves > 0

    def fire(self, positions: Collection[int]) -> None:
        """A unit fires these rows."""
        self._fires += 1
        self._positions.update(positions)

    def fired(self, positions: Collection[int]) -> None:
        """That unit is applied, or lost."""
        self._fires -= 1
        self._positions.difference_update(positions)

    def move(self, positions: Collection[int]) -> None:
        """A unit moves these rows."""
        self._moves += 1
        self._positions.update(positions)

    def moved(self, positions: Collection[int]) -> None:
        """That unit is applied, or lost."""
        self._moves -= 1
        self._positions.difference_update(positions)
