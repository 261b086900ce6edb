"""Rows of the time index, and the interface of the features that write row changes into the log.

A row names a stored record and the time at which it is due. A record has at most one row, ever, so its position
identifies the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

Key: TypeAlias = tuple[int, int]
"""The time at which a row is due, ms since 1970, and the position of its record. Rows are in this order."""
LOWEST: Final[Key] = (-1, -1)
"""A key before all rows."""
Counts: TypeAlias = Mapping[int, tuple[int, int]]
"""Number of pending rows and bytes of their records, for stretches of the log, by the beginning of the stretch."""


class Row(NamedTuple):
    """Time at which a row is due, ms since 1970, with position and size of its record."""

    due_ms: int
    position: int
    size: int


class RowChanges(NamedTuple):
    """Changes of rows by one command, or by all commands up to `end`: `added` rows are applied first, then `removed`
    rows.
    """

    added: Sequence[tuple[int, int, int]] = ()
    removed: Sequence[Key] = ()
    end: int = 0


class RowSource(Protocol):
    """The feature whose rows an index holds. `stretch_bytes` is the size of the stretch of log that one counter
    covers.
    """

    stretch_bytes: int

    def decode(self, kind: int, payload: bytes | memoryview) -> RowChanges | None:
        """Return the row changes of a command, None if it is about something else. Called by workers."""

    def lowest(self) -> int | None:
        """Return the beginning of the lowest stretch with pending rows in the applied state, or None."""

    def pending(self) -> Counts:
        """Return the counts of pending rows in the applied state. Stretches without rows are left out."""


def changed_rows(changes: Iterable[RowChanges]) -> int:
    """Return the number of rows in these changes."""
    return sum(len(change.added) + len(change.removed) for change in changes)
