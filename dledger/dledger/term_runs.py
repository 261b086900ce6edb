"""Terms of entries as runs, (first index, term) of each stretch of one term: what core and store both keep of a log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

TermRuns = Sequence[tuple[int, int]]


def relearned(
    runs: TermRuns, found: TermRuns, first_index: int, next_index: int, last_index: int
) -> list[tuple[int, int]]:
    """The runs of a log up to `last_index`, with `found` in the place of what was thought of some of its entries.

    `found` begins with `first_index` and holds up to `next_index`; what lies outside the log is passed over.
    """
    if not runs or not found:
        return list(runs)
    first_index, next_index = max(first_index, runs[0][0]), min(next_index, last_index + 1)
    if first_index >= next_index:
        return list(runs)
    inside = [(max(start, first_index), term) for start, term in found if start < next_index]
    # Of runs that begin below what is kept, the last one counts.
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
