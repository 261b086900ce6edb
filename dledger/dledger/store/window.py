"""Entries' data in memory: the metas of the last entries, and the terms of all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from dledger.store.recovery import RECENT_ENTRIES
from dledger.term_runs import TermRuns, relearned
from dledger.types import EntryMeta

SLACK_ENTRIES = 8_192


class RecentWindow:
    """Metas of the last `RECENT_ENTRIES` to `RECENT_ENTRIES + SLACK_ENTRIES` entries, and of all not yet durable.

    Written on the event loop. First index and list change together, in one assignment, so that reads on other threads
    are consistent.
    """

    __slots__ = ("_window",)

    def __init__(self, next_index: int, metas: list[EntryMeta]) -> None:
        self._window = (next_index - len(metas), metas)

    def get(self, index: int) -> EntryMeta | None:
        """Return the meta of an entry; None if the window does not hold it."""
        base, metas = self._window
        at = index - base
        return metas[at] if 0 <= at < len(metas) else None

    def run(self, index: int, max_bytes: int) -> list[EntryMeta]:
        """Return adjoining entries from `index` on, up to `max_bytes` (but at least one, if the window holds it)."""
        base, metas = self._window
        place = index - base
        if not 0 <= place < len(metas):
            return []
        end = place + 1
        position = metas[place].end
        limit = metas[place].position + max_bytes
        while end < len(metas) and metas[end].position == position and metas[end].end <= limit:
            position = metas[end].end
            end += 1
        return metas[place:end]

    def extend(self, metas: Sequence[EntryMeta], durable: int) -> None:
        """Append entries, and drop the oldest durable ones if there are too many."""
        base, kept_metas = self._window
        kept_metas.extend(metas)
        surplus = min(len(kept_metas) - RECENT_ENTRIES, durable + 1 - base)
        if surplus > SLACK_ENTRIES:
            self._window = (base + surplus, kept_metas[surplus:])

    def truncate(self, first_index: int) -> None:
        """Drop the entries from `first_index` on."""
        base, kept_metas = self._window
        keep = first_index - base
        self._window = (base, kept_metas[:keep]) if keep > 0 else (first_index, [])


class TermTable:
    """Term of every kept entry, as runs of equal terms. A change replaces the list."""

    __slots__ = ("runs",)

    def __init__(self, runs: list[tuple[int, int]]) -> None:
        self.runs = runs

    def term_at(self, index: int) -> int:
        """Return the term of a kept entry."""
        runs = self.runs
        return runs[bisect_right(runs, index, key=_first_index) - 1][1]

    def extend(self, metas: Sequence[EntryMeta], last_term: int) -> None:
        """Append entries; `last_term` is the term of the entry before them."""
        for meta in metas:
            if meta.term != last_term or not self.runs:
                self.runs = [*self.runs, (meta.index, meta.term)]
                last_term = meta.term

    def learn(self, found: TermRuns, first_index: int, next_index: int, last_index: int) -> None:
        """Learn the terms of some entries of a log that ends with `last_index`; see `relearned`."""
        self.runs = relearned(self.runs, found, first_index, next_index, last_index)

    def truncate(self, first_index: int) -> None:
        """Drop the entries from `first_index` on."""
        self.runs = [run for run in self.runs if run[0] < first_index]

    def trim(self, first_index: int) -> None:
        """Drop the entries below `first_index`."""
        at = bisect_right(self.runs, first_index, key=_first_index) - 1
        if at >= 0:
            self.runs = [(first_index, self.runs[at][1]), *self.runs[at + 1 :]]


def _first_index(run: tuple[int, int]) -> int:
    return run[0]
