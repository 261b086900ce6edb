"""Rows of the time index, and what it is told of them by whoever writes them into the log.

A row names a stored record and when it is due.  A record has one row at most, ever: its position stands for the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

Key: TypeAlias = tuple[int, int]
"""When a row is due, ms since 1970, and the position of its record: the order of rows."""
LOWEST: Final[Key] = (-1, -1)
"""A key before all rows."""
Counts: TypeAlias = Mapping[int, tuple[int, int]]
"""For stretches of the log, by where they begin: how many rows are pending there, and the bytes of their records."""


class Row(NamedTuple):
    """When it is due, ms since 1970; position and size of its record."""

    due_ms: int
    position: int
    size: int


class RowChanges(NamedTuple):
    """What one command, or all commands up to `end`, do to rows: first `added` come, then `gone` go."""

    added: Sequence[tuple[int, int, int]] = ()
    gone: Sequence[Key] = ()
    end: int = 0


class RowSource(Protocol):
    """Whose rows an index holds; `stretch_bytes` is how much of the log one counter is for."""

    stretch_bytes: int

    def decode(self, kind: int, payload: bytes | memoryview) -> RowChanges | None:
        """What a command does; None if it is about something else.  Called by workers."""

    def lowest(self) -> int | None:
        """Where the lowest stretch begins that has pending rows in the applied state; None if there is none."""

    def pending(self) -> Counts:
        """What the applied state says is pending; stretches without rows are left out."""


def changed_rows(changes: Iterable[RowChanges]) -> int:
    """How many rows these are about."""
    return sum(len(change.added) + len(change.gone) for change in changes)
