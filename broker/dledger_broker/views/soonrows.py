"""Rows that are due next, in memory: the rows of the time index up to a horizon."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final

from dledger_broker.views.timerows import LOWEST, Key, Row

SOON_ROWS: Final = 10_000
"""Number of rows to keep. Above twice this number the later half is forgotten, and read again when needed."""


class SoonRows:
    """All pending rows with a key up to `horizon`. A `horizon` of None means all rows.

    `take` returns the lowest rows first, and each call continues behind the last. Once no more rows are due, `take`
    returns the rows that are still pending again.
    """

    def __init__(self, limit: int = SOON_ROWS) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, int]] = []
        self._handed_out: list[tuple[int, int, int]] = []
        self._prune_threshold = limit
        self._pending: set[int] = set()
        self._excluded: set[int] = set()
        self.horizon: Key | None = LOWEST

    def start_over(self) -> None:
        """Forget all rows. Rows that were set aside are tried again."""
        self._excluded.clear()
        self._heap.clear()
        self._handed_out.clear()
        self._pending.clear()
        self.horizon = LOWEST

    @property
    def needs_refill(self) -> bool:
        """True if more rows should be read from the file."""
        return self.horizon is not None and len(self._heap) <= self._limit // 2

    @property
    def refill_size(self) -> int:
        """Number of rows that should be read."""
        return self._limit - self._limit // 2

    def is_pending(self, position: int) -> bool:
        """Return whether the row of a record that was returned is still pending."""
        return position in self._pending

    def add(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Add new rows. The horizon may become lower because of them."""
        for row in rows:
            if self.horizon is None or row[:2] <= self.horizon:
                self._put(row)
        if len(self._heap) > 2 * self._limit:
            self._drop_later_half()

    def extend(self, rows: Iterable[tuple[int, int, int]], horizon: Key | None) -> None:
        """Add the pending rows between the horizon and the next horizon, which replaces it."""
        for row in rows:
            self._put(row)
        self.horizon = horizon

    def remove(self, positions: Iterable[int]) -> None:
        """Forget the rows of these records."""
        self._pending.difference_update(positions)

    def drop_below(self, position: int) -> None:
        """Forget rows of records below a position, which do not count any more."""
        self._pending = {pending for pending in self._pending if pending >= position}

    def set_aside(self, position: int) -> None:
        """Do not return the row of a record any more."""
        self._excluded.add(position)
        self._pending.discard(position)

    def restore_set_aside(self) -> bool:
        """Allow the rows that were set aside again. Return False if no row was set aside. Otherwise all rows are read
        anew.
        """
        if not self._excluded:
            return False
        self.start_over()
        return True

    def take(self, before_ms: int, limit: int) -> list[Row] | None:
        """Return the next rows that are due before a time, None if more must be read first.

        If it returns no rows, the next call begins with the first rows again.
        """
        taken: list[Row] = []
        while len(taken) < limit and self._heap and self._heap[0][0] < before_ms:
            row = heappop(self._heap)
            if row[1] in self._pending:
                self._handed_out.append(row)
                taken.append(Row(*row))
        if taken:
            self._forget_removed()
            return taken
        if self.horizon is not None and self.horizon[0] < before_ms:
            return None
        self._heap += (row for row in self._handed_out if row[1] in self._pending)
        heapify(self._heap)
        self._handed_out.clear()
        return taken

    def _forget_removed(self) -> None:
        """Forget returned rows that are gone. While messages are overdue, `take` does not begin again for a long
        time.
        """
        if len(self._handed_out) > self._prune_threshold:
            self._handed_out = [row for row in self._handed_out if row[1] in self._pending]
            self._prune_threshold = max(self._limit, 2 * len(self._handed_out))

    def _drop_later_half(self) -> None:
        """Forget the later half of the rows, or only the rows that are gone if that is enough."""
        pending = [row for row in self._heap if row[1] in self._pending]
        if len(pending) > self._limit:
            kept = nsmallest(self._limit, pending)
            self._pending.difference_update(row[1] for row in pending)
            self._pending.update(row[1] for row in kept)
            self.horizon = kept[-1][:2]
            pending = kept
        heapify(pending)
        self._heap = pending

    def _put(self, row: tuple[int, int, int]) -> None:
        if row[1] not in self._excluded and row[1] not in self._pending:
            self._pending.add(row[1])
            heappush(self._heap, row)
