"""Histogram of the times that sends take, from being staged to being applied. Each unit is counted in one step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

STOCK_BOUNDS_MS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
"""RocketMQ's bounds, in ms, between classes of durations."""
BOUNDS_MS: Final[tuple[float, ...]] = tuple(
    sorted({*STOCK_BOUNDS_MS, *(round(0.1 * 1.25**step, 3) for step in range(52))})
)
"""Bounds of the classes used here, in ms. They are at most a quarter apart, so that quantiles are as exact."""


class PutTimes:
    """Histogram of messages by class of time.

    `counts` has an item for the times below each of `BOUNDS_MS`, and a last item for times beyond all bounds. It only
    grows.
    """

    __slots__ = ("counts", "longest_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.longest_ms = 0.0

    def took(self, seconds: float, messages: int) -> None:
        """Count messages that took this time."""
        time_ms = seconds * 1000
        self.counts[bisect_right(BOUNDS_MS, time_ms)] += messages
        self.longest_ms = max(self.longest_ms, time_ms)


def stock_counts(counts: Sequence[int]) -> list[int]:
    """Return the numbers of messages in RocketMQ's classes. The last class is beyond all bounds."""
    sums = [0, *accumulate(counts)]
    ends = [sums[BOUNDS_MS.index(bound) + 1] for bound in STOCK_BOUNDS_MS]
    return [end - begin for begin, end in zip([0, *ends], [*ends, sums[-1]], strict=True)]


def quantile_ms(counts: Sequence[int], part: float) -> float:
    """Return a time, ms, within which this part of the messages was stored, 0 without messages.

    Times beyond all bounds count as the last bound.
    """
    wanted = part * sum(counts)
    for bound, count in zip((*BOUNDS_MS, BOUNDS_MS[-1]), accumulate(counts), strict=True):
        if count >= wanted > 0:
            return bound
    return 0.0
