"""Corrupt ranges: the parts of the log that were durable once and do not verify now. Nothing is served from them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from threading import Lock
from typing import NamedTuple

from dledger.errors import CorruptionError


class CorruptRange(NamedTuple):
    """Range of the log that does not verify: bytes [start, end), entries [first_index, next_index)."""

    start: int
    end: int
    first_index: int
    next_index: int


def join_touching(ranges: Iterable[CorruptRange], borders: Container[int]) -> list[CorruptRange]:
    """Return the ranges in order, with touching ranges joined.

    A range can only be checked against its neighbours, so touching ranges are one. Ranges stay apart at `borders`, the
    positions of snapshots. A snapshot says what the log must join there, the state continues from it, and other nodes
    may have trimmed the log before it.
    """
    result: list[CorruptRange] = []
    for corrupt_range in sorted(ranges):
        touches = result and result[-1].end == corrupt_range.start
        if (touches and corrupt_range.start not in borders) or (result and result[-1].end > corrupt_range.start):
            last = result.pop()
            result.append(
                CorruptRange(
                    last.start,
                    max(last.end, corrupt_range.end),
                    last.first_index,
                    max(last.next_index, corrupt_range.next_index),
                )
            )
        else:
            result.append(corrupt_range)
    return result


class Damage:
    """The known corrupt ranges. A change replaces the tuple, so that readers on other threads see a consistent one."""

    __slots__ = ("_borders", "_lock", "ranges")

    def __init__(self, ranges: Iterable[CorruptRange], borders: Callable[[], Container[int]]) -> None:
        """Make the damage; `borders` returns the positions of the snapshots (see `join_touching`)."""
        self._lock = Lock()
        self._borders = borders
        self.ranges: tuple[CorruptRange, ...] = tuple(ranges)

    def add(self, corrupt_range: CorruptRange) -> None:
        """Add a range, joined with those that it touches."""
        with self._lock:
            self.ranges = tuple(join_touching((*self.ranges, corrupt_range), self._borders()))

    def remove(self, healed: CorruptRange) -> None:
        """Remove a range that verifies again."""
        with self._lock:
            self.ranges = tuple(corrupt_range for corrupt_range in self.ranges if corrupt_range != healed)

    def keep_from(self, position: int) -> None:
        """Forget ranges that lie wholly below a position."""
        with self._lock:
            self.ranges = tuple(corrupt_range for corrupt_range in self.ranges if corrupt_range.end > position)

    def keep_below(self, position: int) -> None:
        """Forget ranges that lie wholly at or above a position, because the log was truncated there."""
        with self._lock:
            self.ranges = tuple(corrupt_range for corrupt_range in self.ranges if corrupt_range.start < position)

    def range_at(self, position: int) -> CorruptRange | None:
        """Return the range that holds a byte."""
        return next(
            (corrupt_range for corrupt_range in self.ranges if corrupt_range.start <= position < corrupt_range.end),
            None,
        )

    def range_of_entry(self, index: int) -> CorruptRange | None:
        """Return the range that holds an entry."""
        return next(
            (
                corrupt_range
                for corrupt_range in self.ranges
                if corrupt_range.first_index <= index < corrupt_range.next_index
            ),
            None,
        )

    def refuse(self, position: int, size: int) -> None:
        """Raise `CorruptionError` if a byte of [position, position + size) is in a range."""
        for corrupt_range in self.ranges:
            if corrupt_range.start < position + size and position < corrupt_range.end:
                raise CorruptionError(
                    f"bytes {corrupt_range.start} to {corrupt_range.end} of the log do not verify on this replica:"
                    " read them on another replica"
                )

    def refuse_index(self, index: int) -> None:
        """Raise `CorruptionError` if an entry is in a range."""
        corrupt_range = self.range_of_entry(index)
        if corrupt_range is not None:
            self.refuse(corrupt_range.start, 1)
