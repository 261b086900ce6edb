"""Values over time: by the log entries that set them, and by the moments at which these entries were first applied.

A history is used for two kinds of answers. A node that answers from its applied state may report any value between two
entries. The first is the last entry applied when it was asked, the second the last applied when it answered. A
confirmed leader may report any value that held in the whole group at some moment between question and answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

T = TypeVar("T")


class History(Generic[T]):
    """History of a value, newest last. `first` holds before the first change."""

    __slots__ = ("_indices", "_moments", "_values")

    def __init__(self, first: T) -> None:
        self._indices: list[int] = [-1]
        self._moments: list[float] = [0.0]
        self._values: list[T] = [first]

    def put(self, index: int, moment: float, value: T) -> None:
        """Add a value that the entry at `index` set. That entry was first applied anywhere at `moment`."""
        self._indices.append(index)
        self._moments.append(moment)
        self._values.append(value)

    @property
    def last(self) -> T:
        """Newest value."""
        return self._values[-1]

    def at(self, index: int) -> T:
        """Return the value after the entry at `index` is applied."""
        return self._values[bisect_right(self._indices, index) - 1]

    def within(self, first_index: int, last_index: int) -> list[T]:
        """Return all values from the entry at `first_index` to the entry at `last_index`, both applied."""
        return self._slice(bisect_right(self._indices, first_index), bisect_right(self._indices, last_index))

    def during(self, first_moment: float, last_moment: float) -> list[T]:
        """Return all values from one moment to another. Changes at either moment count on both sides."""
        return self._slice(bisect_left(self._moments, first_moment), bisect_right(self._moments, last_moment))

    def _slice(self, first: int, after: int) -> list[T]:
        return self._values[max(first - 1, 0) : max(after, 1)]
