"""Values over time: by the entries of the log that made them, and by when those were first applied.

Two questions are asked of a history. A node that answers from what it has applied may say whatever held somewhere
between the entry that it had applied when it was asked and the one that it had applied when it answered. A confirmed
leader may say whatever held, in the whole group, at some moment between the question and the answer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

T = TypeVar("T")


class History(Generic[T]):
    """The values of one thing, the newest last; `first` holds before the first change."""

    __slots__ = ("_indices", "_moments", "_values")

    def __init__(self, first: T) -> None:
        self._indices: list[int] = [-1]
        self._moments: list[float] = [0.0]
        self._values: list[T] = [first]

    def put(self, index: int, moment: float, value: T) -> None:
        """The entry at `index`, first applied anywhere at `moment`, made it this."""
        self._indices.append(index)
        self._moments.append(moment)
        self._values.append(value)

    @property
    def last(self) -> T:
        """The newest value."""
        return self._values[-1]

    def at(self, index: int) -> T:
        """The value once the entry at `index` is applied."""
        return self._values[bisect_right(self._indices, index) - 1]

    def within(self, first_index: int, last_index: int) -> list[T]:
        """All values from the entry at `first_index` to that at `last_index`, both applied."""
        return self._between(bisect_right(self._indices, first_index), bisect_right(self._indices, last_index))

    def during(self, first_moment: float, last_moment: float) -> list[T]:
        """All values from one moment to another one, both of which something may have begun or ended in."""
        return self._between(bisect_left(self._moments, first_moment), bisect_right(self._moments, last_moment))

    def _between(self, first: int, after: int) -> list[T]:
        return self._values[max(first - 1, 0) : max(after, 1)]
