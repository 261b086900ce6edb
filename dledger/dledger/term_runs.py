"""Terms of entries as runs: (first index, term) of each stretch of one term. Core and store both keep them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

TermRuns = Sequence[tuple[int, int]]


def relearned(
    runs: TermRuns, found: TermRuns, first_index: int, next_index: int, last_index: int
) -> list[tuple[int, int]]:
    """Return the runs of a log up to `last_index`, with `found` replacing the assumed terms of some entries.

    `found` covers the entries from `first_index` to before `next_index`. Entries outside the log are skipped.
    """
    if not runs or not found:
        return list(runs)
    first_index, next_index = max(first_index, runs[0][0]), min(next_index, last_index + 1)
    if first_index >= next_index:
        return list(runs)
    inside = [(max(start, first_index), term) for start, term in found if start < next_index]
    # If several runs begin at or below the first kept entry, keep only the last.
    inside = [run for at, run in enumerate(inside) if at + 1 == len(inside) or inside[at + 1][0] > first_index]
    behind = [run for run in runs if run[0] > next_index]
    if next_index <= last_index:
        behind.insert(0, (next_index, runs[bisect_right(runs, next_index, key=_start) - 1][1]))
    joined: list[tuple[int, int]] = []
    for run in (*(run for run in runs if run[0] < first_index), *inside, *behind):
        if not joined or joined[-1][1] != run[1]:
            joined.append(run)
    return joined


def _start(run: tuple[int, int]) -> int:
    return run[0]
