"""The ranges of the log that once were durable and do not verify now.  Nothing is served from them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from threading import Lock
from typing import NamedTuple

from dledger.errors import CorruptionError


class CorruptRange(NamedTuple):
    """Bytes [start, end) of the log, entries [first_index, next_index), that do not verify."""

    start: int
    end: int
    first_index: int
    next_index: int


def joined(ranges: Iterable[CorruptRange], borders: Container[int]) -> list[CorruptRange]:
    """The same in order, those that touch as one: none of them can be told right without what it joins.

    But where a snapshot stands, at one of the `borders`, it tells that: there they stay apart, for the state goes on
    there, and others may have trimmed what lies before.
    """
    result: list[CorruptRange] = []
    for each in sorted(ranges):
        touches = result and result[-1].end == each.start
        if (touches and each.start not in borders) or (result and result[-1].end > each.start):
            last = result.pop()
            result.append(
                CorruptRange(
                    last.start, max(last.end, each.end), last.first_index, max(last.next_index, each.next_index)
                )
            )
        else:
            result.append(each)
    return result


class Damage:
    """The known corrupt ranges.  Changes replace the tuple: readers on other threads see a consistent one."""

    __slots__ = ("_borders", "_lock", "ranges")

    def __init__(self, ranges: Iterable[CorruptRange], borders: Callable[[], Container[int]]) -> None:
        """`borders` are the positions of the snapshots, see `joined`."""
        self._lock = Lock()
        self._borders = borders
        self.ranges: tuple[CorruptRange, ...] = tuple(ranges)

    def add(self, found: CorruptRange) -> None:
        """Add a range, joined with those that it touches."""
        with self._lock:
            self.ranges = tuple(joined((*self.ranges, found), self._borders()))

    def remove(self, healed: CorruptRange) -> None:
        """A range verifies again."""
        with self._lock:
            self.ranges = tuple(known for known in self.ranges if known != healed)

    def keep_from(self, position: int) -> None:
        """Forget what lies wholly below a position."""
        with self._lock:
            self.ranges = tuple(known for known in self.ranges if known.end > position)

    def keep_below(self, position: int) -> None:
        """Forget what lies wholly at or above a position: the log was truncated there."""
        with self._lock:
            self.ranges = tuple(known for known in self.ranges if known.start < position)

    def at(self, position: int) -> CorruptRange | None:
        """The range that holds a byte."""
        return next((known for known in self.ranges if known.start <= position < known.end), None)

    def holding(self, index: int) -> CorruptRange | None:
        """The range that holds an entry."""
        return next((known for known in self.ranges if known.first_index <= index < known.next_index), None)

    def refuse(self, position: int, size: int) -> None:
        """Raise `CorruptionError` if a byte of [position, position + size) is in a range."""
        for known in self.ranges:
            if known.start < position + size and position < known.end:
                raise CorruptionError(
                    f"bytes {known.start} to {known.end} of the log do not verify on this replica: read another one's"
                )

    def refuse_index(self, index: int) -> None:
        """Raise `CorruptionError` if an entry is in a range."""
        known = self.holding(index)
        if known is not None:
            self.refuse(known.start, 1)
