"""Overlay of delayed messages: rows that this leader has proposed to fire, cancel or move, until that is applied."""

from __future__ import annotations

from collections.abc import Callable, Collection


class RowsInFlight:
    """Rows in flight, by the positions of their records.

    A row stays here until its unit ends, not until the job's run ends. A later run of this leader must see it.
    `moves_ended` counts units of moves that have ended.
    """

    def __init__(self) -> None:
        self.moves_ended = 0
        self._positions: set[int] = set()
        self._fired: set[int] = set()
        self._fires = 0
        self._moves = 0
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def __contains__(self, position: int) -> bool:
        """Return whether a change of a record's row is in flight."""
        return position in self._positions

    def is_fired(self, position: int) -> bool:
        """Return whether a row is about to be fired."""
        return position in self._fired

    @property
    def fires(self) -> int:
        """Return the number of units in flight that fire rows; at most 1."""
        return self._fires

    @property
    def moves(self) -> int:
        """Return the number of units in flight that move rows."""
        return self._moves

    def call_when_ended(self, position: int, callback: Callable[[], None]) -> None:
        """Call back once the change of a row is applied or lost."""
        self._waiting.setdefault(position, []).append(callback)

    def fire(self, positions: Collection[int]) -> None:
        """Note a unit that fires these rows."""
        self._fires += 1
        self._fired.update(positions)
        self._positions.update(positions)

    def fired(self, positions: Collection[int]) -> None:
        """Note that a unit of `fire` is applied or lost."""
        self._fires -= 1
        self._fired.difference_update(positions)
        self._end(positions)

    def move(self, positions: Collection[int]) -> None:
        """Note a unit that moves these rows."""
        self._moves += 1
        self._positions.update(positions)

    def moved(self, positions: Collection[int]) -> None:
        """Note that a unit of `move` is applied or lost."""
        self._moves -= 1
        self.moves_ended += 1
        self._end(positions)

    def cancel(self, positions: Collection[int]) -> None:
        """Note a unit that cancels these rows."""
        self._positions.update(positions)

    def cancelled(self, positions: Collection[int]) -> None:
        """Note that a unit of `cancel` is applied or lost."""
        self._end(positions)

    def _end(self, positions: Collection[int]) -> None:
        self._positions.difference_update(positions)
        for callback in [callback for position in positions for callback in self._waiting.pop(position, ())]:
            callback()
