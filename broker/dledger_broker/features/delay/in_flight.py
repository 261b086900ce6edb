"""Overlay of due messages: rows that this leader has proposed to fire, cancel or move, and that are not applied yet."""

from __future__ import annotations

from collections.abc import Callable, Collection


class RowsInFlight:
    """Rows by the positions of their records. An entry ends with its unit, not with the run of the job that staged it:
    whatever a later run of this leader decides must see it.

    `moves_ended` counts units of moves that are on their way no longer.
    """

    def __init__(self) -> None:
        self.moves_ended = 0
        self._positions: set[int] = set()
        self._fired: set[int] = set()
        self._fires = 0
        self._moves = 0
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def __contains__(self, position: int) -> bool:
        """Whether something is on its way for the row of a record."""
        return position in self._positions

    def is_fired(self, position: int) -> bool:
        """Whether it is on its way to be fired."""
        return position in self._fired

    @property
    def fires(self) -> int:
        """How many units of messages that are due are on their way: one at the most."""
        return self._fires

    @property
    def moves(self) -> int:
        """How many units of moved messages are on their way."""
        return self._moves

    def when_ended(self, position: int, told: Callable[[], None]) -> None:
        """Call back once what is on its way for a row is applied, or lost."""
        self._waiting.setdefault(position, []).append(told)

    def fire(self, positions: Collection[int]) -> None:
        """A unit fires these rows."""
        self._fires += 1
        self._fired.update(positions)
        self._positions.update(positions)

    def fired(self, positions: Collection[int]) -> None:
        """That unit is applied, or lost."""
        self._fires -= 1
        self._fired.difference_update(positions)
        self._end(positions)

    def move(self, positions: Collection[int]) -> None:
        """A unit moves these rows."""
        self._moves += 1
        self._positions.update(positions)

    def moved(self, positions: Collection[int]) -> None:
        """That unit is applied, or lost."""
        self._moves -= 1
        self.moves_ended += 1
        self._end(positions)

    def cancel(self, positions: Collection[int]) -> None:
        """A unit cancels these rows."""
        self._positions.update(positions)

    def cancelled(self, positions: Collection[int]) -> None:
        """That unit is applied, or lost."""
        self._end(positions)

    def _end(self, positions: Collection[int]) -> None:
        self._positions.difference_update(positions)
        for told in [told for position in positions for told in self._waiting.pop(position, ())]:
            told()
