"""Rows that are due next, in memory: those of the time index up to a horizon."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import Final

from dledger_broker.views.timerows import LOWEST, Key, Row

SOON_ROWS: Final = 10_000
"""So many are kept; above twice as many the later half is forgotten, to be read again."""


class SoonRows:
    """Whatever is pending with a key up to `horizon`, which is None if that is everything.

    `take` hands out the lowest first and goes on behind them; once none is left that is due, those that were handed out
    and are pending still come again.
    """

    def __init__(self, limit: int = SOON_ROWS) -> None:
        self._limit = limit
        self._heap: list[tuple[int, int, int]] = []
        self._handed_out: list[tuple[int, int, int]] = []
        self._prune_above = limit
        self._pending: set[int] = set()
        self._aside: set[int] = set()
        self.horizon: Key | None = LOWEST

    def start_over(self) -> None:
        """Know nothing; what was set aside is tried again."""
        self._aside.clear()
        self._heap.clear()
        self._handed_out.clear()
        self._pending.clear()
        self.horizon = LOWEST

    @property
    def short(self) -> bool:
        """Whether more should be read from the file."""
        return self.horizon is not None and len(self._heap) <= self._limit // 2

    @property
    def wanted(self) -> int:
        """How many more rows should be read."""
        return self._limit - self._limit // 2

    def is_pending(self, position: int) -> bool:
        """Whether the row of a record is pending; it was handed out."""
        return position in self._pending

    def add(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Rows that were added now; the horizon may become lower for them."""
        for row in rows:
            if self.horizon is None or row[:2] <= self.horizon:
                self._put(row)
        if len(self._heap) > 2 * self._limit:
            self._shorten()

    def extend(self, rows: Iterable[tuple[int, int, int]], horizon: Key | None) -> None:
        """Whatever is pending between the horizon and another one, which takes its place."""
        for row in rows:
            self._put(row)
        self.horizon = horizon

    def remove(self, positions: Iterable[int]) -> None:
        """Rows of these records are gone."""
        self._pending.difference_update(positions)

    def drop_below(self, position: int) -> None:
        """No row of a record below it counts any more."""
        self._pending = {pending for pending in self._pending if pending >= position}

    def set_aside(self, position: int) -> None:
        """Hand out the row of a record no more."""
        self._aside.add(position)
        self._pending.discard(position)

    def take_back(self) -> bool:
        """Hand out again what was set aside; False if nothing was.  Everything is read anew."""
        if not self._aside:
            return False
        self.start_over()
        return True

    def take(self, before_ms: int, limit: int) -> list[Row] | None:
        """The next rows that are due before a time; None if more must be read first.

        None left: the first ones come again.
        """
        taken: list[Row] = []
        while len(taken) < limit and self._heap and self._heap[0][0] < before_ms:
            row = heappop(self._heap)
            if row[1] in self._pending:
                self._handed_out.append(row)
                taken.append(Row(*row))
        if taken:
            self._prune()
            return taken
        if self.horizon is not None and self.horizon[0] < before_ms:
            return None
        self._heap += (row for row in self._handed_out if row[1] in self._pending)
        heapify(self._heap)
        self._handed_out.clear()
        return taken

    def _prune(self) -> None:
        """Forget those that were handed out and are gone: while messages are overdue nothing begins again for long."""
        if len(self._handed_out) > self._prune_above:
            self._handed_out = [row for row in self._handed_out if row[1] in self._pending]
            self._prune_above = max(self._limit, 2 * len(self._handed_out))

    def _shorten(self) -> None:
        """Forget the later half, or only what is gone if that is enough."""
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
        if row[1] not in self._aside and row[1] not in self._pending:
            self._pending.add(row[1])
            heappush(self._heap, row)
