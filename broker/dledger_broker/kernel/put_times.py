"""Times that sends take to be stored, from being staged to being applied: one step for each unit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

STOCK_BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""Where RocketMQ divides such times."""
BOUNDS_MS: Final[tuple[float, ...]] = tuple(
    sorted({*STOCK_BOUNDS_MS, *(round(0.1 * 1.25**step, 3) for step in range(52))})
)
"""Where they are divided here: at most a quarter apart, so that quantiles are as exact."""


class PutTimes:
    """`counts` has messages by the bound that their time is below, and those beyond all of them; it only grows."""

    __slots__ = ("counts", "longest_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.longest_ms = 0.0

    def took(self, seconds: float, messages: int) -> None:
        """Messages took so long."""
        time_ms = seconds * 1000
        self.counts[bisect_right(BOUNDS_MS, time_ms)] += messages
        self.longest_ms = max(self.longest_ms, time_ms)


def stock_counts(counts: Sequence[int]) -> list[int]:
    """Messages by RocketMQ's bounds, and beyond all of them."""
    sums = [0, *accumulate(counts)]
    ends = [sums[BOUNDS_MS.index(bound) + 1] for bound in STOCK_BOUNDS_MS]
    return [end - begin for begin, end in zip([0, *ends], [*ends, sums[-1]], strict=True)]


def quantile_ms(counts: Sequence[int], part: float) -> float:
    """A time, ms, that so great a part of the messages took at most; 0 for none."""
    wanted = part * sum(counts)
    for bound, count in zip((*BOUNDS_MS, BOUNDS_MS[-1]), accumulate(counts), strict=True):
        if count >= wanted > 0:
            return bound
    return 0.0
