"""The ranges of the log that once were durable and do not verify now.  Nothing is served from them."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from dledger.errors import CorruptionError


class CorruptRange(NamedTuple):
    """Bytes [start, end) of the log, entries [first_index, next_index), that do not verify."""

    start: int
    end: int
    first_index: int
    next_index: int


class Damage:
    """The known corrupt ranges.  Changes replace the tuple: readers on other threads see a consistent one."""

    __slots__ = ("_lock", "ranges")

    def __init__(self, ranges: Iterable[CorruptRange] = ()) -> None:
        self._lock = Lock()
        self.ranges: tuple[CorruptRange, ...] = tuple(ranges)

    def add(self, found: CorruptRange) -> None:
        """Add a range, joined with those that it touches."""
        with self._lock:
            kept: list[CorruptRange] = []
            for known in self.ranges:
                if known.end < found.start or known.start > found.end:
                    kept.append(known)
                else:
                    found = CorruptRange(
                        min(known.start, found.start),
                        max(known.end, found.end),
                        min(known.first_index, found.first_index),
                        max(known.next_index, found.next_index),
                    )
            self.ranges = tuple(sorted((*kept, found)))

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
