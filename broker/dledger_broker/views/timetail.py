"""Memory tail of the time index: what applied commands did to rows that the file does not know yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from dledger_broker.views.timerows import Key, Row, RowChanges, changed_rows

MAX_TAIL_ROWS: Final = 1_000_000
"""Rows added and gone that the tail holds; one more, and it is discarded: the index reads the log instead."""


class TimeTail:
    """Everything behind `begin` of the log, up to what is applied."""

    def __init__(self, limit: int = MAX_TAIL_ROWS) -> None:
        self._limit = limit
        self._changes: deque[RowChanges] = deque()
        self._rows = 0
        self.begin = 0

    def __len__(self) -> int:
        """How many rows, added and gone."""
        return self._rows

    def start_over(self, begin: int) -> None:
        """Hold nothing, from `begin` on."""
        self._changes.clear()
        self._rows = 0
        self.begin = begin

    def add(self, change: RowChanges) -> bool:
        """Hold one more; False if there is no room, and nothing is held any more but what comes behind it."""
        self._rows += changed_rows((change,))
        if self._rows > self._limit:
            self.start_over(change.end)
            return False
        self._changes.append(change)
        return True

    def all(self) -> Sequence[RowChanges]:
        """What is held now, in order."""
        return tuple(self._changes)

    def first(self, end: int, max_rows: int) -> tuple[list[RowChanges], bool]:
        """What comes first up to a log position, so many rows or one change alone; and whether that is all."""
        taken: list[RowChanges] = []
        rows = 0
        for change in takewhile(lambda change: change.end <= end, self._changes):
            rows += changed_rows((change,))
            if taken and rows > max_rows:
                break
            taken.append(change)
        return taken, len(taken) == len(self._changes)

    def drop(self, position: int) -> None:
        """The file has what is behind no `position`."""
        while self._changes and self._changes[0].end <= position:
            self._rows -= changed_rows((self._changes.popleft(),))
        self.begin = max(self.begin, position)


def laid_over(rows: Sequence[Row], tail: Sequence[RowChanges], behind: Key, up_to: Key | None) -> list[Row]:
    """Rows of the file, and of the tail in a range of keys (`behind` < key <= `up_to`), less what is gone; in order.

    The file may know of a part of the tail already: what it has from there is in both.
    """
    gone = {position for change in tail for _, position in change.gone}
    found = {row.position: row for row in rows}
    for change in tail:
        for added in change.added:
            if added[:2] > behind and (up_to is None or added[:2] <= up_to):
                found[added[1]] = Row(*added)
    return sorted(row for position, row in found.items() if position not in gone)
