"""Memory tail of the time index: row changes of applied commands that the file does not have yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from dledger_broker.views.timerows import Key, Row, RowChanges, changed_rows

MAX_TAIL_ROWS: Final = 1_000_000
"""Maximum number of added and gone rows in the tail. Beyond it the tail is discarded, and the index reads the log
instead.
"""


class TimeTail:
    """All row changes from `begin` of the log to the applied position."""

    def __init__(self, limit: int = MAX_TAIL_ROWS) -> None:
        self._limit = limit
        self._changes: deque[RowChanges] = deque()
        self._rows = 0
        self.begin = 0

    def __len__(self) -> int:
        """Return the number of rows, added and gone."""
        return self._rows

    def start_over(self, begin: int) -> None:
        """Hold nothing, from `begin` on."""
        self._changes.clear()
        self._rows = 0
        self.begin = begin

    def add(self, change: RowChanges) -> bool:
        """Add a change. Return False if it does not fit. Then all changes up to this one are dropped."""
        self._rows += changed_rows((change,))
        if self._rows > self._limit:
            self.start_over(change.end)
            return False
        self._changes.append(change)
        return True

    def all(self) -> Sequence[RowChanges]:
        """Return the present changes, in order."""
        return tuple(self._changes)

    def first(self, end: int, max_rows: int) -> tuple[list[RowChanges], bool]:
        """Return the first changes up to a log position, at most `max_rows` rows or one change, and whether these are
        all.
        """
        taken: list[RowChanges] = []
        rows = 0
        for change in takewhile(lambda change: change.end <= end, self._changes):
            rows += changed_rows((change,))
            if taken and rows > max_rows:
                break
            taken.append(change)
        return taken, len(taken) == len(self._changes)

    def drop(self, position: int) -> None:
        """Drop the changes up to `position`, which the file has now."""
        while self._changes and self._changes[0].end <= position:
            self._rows -= changed_rows((self._changes.popleft(),))
        self.begin = max(self.begin, position)


def merge_tail(rows: Sequence[Row], tail: Sequence[RowChanges], after: Key, up_to: Key | None) -> list[Row]:
    """Return rows of the file, with the tail's rows in a range of keys (`after` < key <= `up_to`), without removed
    rows.

    The rows are in order. The file may have a part of the tail already: its rows are then in both.
    """
    removed = {position for change in tail for _, position in change.removed}
    rows_by_position = {row.position: row for row in rows}
    for change in tail:
        for added in change.added:
            if added[:2] > after and (up_to is None or added[:2] <= up_to):
                rows_by_position[added[1]] = Row(*added)
    return sorted(row for position, row in rows_by_position.items() if position not in removed)
