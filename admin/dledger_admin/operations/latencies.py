"""Histogram of latencies with a bounded number of buckets, each about 3 % wide."""

from __future__ import annotations

from typing import Final

import msgspec

_STEPS_BITS: Final = 5
_STEPS: Final = 1 << _STEPS_BITS
"""Number of buckets between a power of two and the next one."""
_BAR_EDGES_MS: Final = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


class Bar(msgspec.Struct, frozen=True):
    """Number of latencies below `below_ms`, and not below the bar before; None for the last bar."""

    below_ms: float | None
    count: int


class Latencies(msgspec.Struct, frozen=True):
    """Latencies in ms. Percentiles are at most 3 % too high. All are 0 without a latency."""

    count: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    bars: list[Bar]


class Histogram:
    """Counts latencies in microseconds: buckets of one below 32 µs, above them 32 for each power of two."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0
        self._sum_us = 0
        self._max_us = 0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a latency, so many times."""
        microseconds = max(0, round(seconds * 1e6))
        bucket = _bucket_of(microseconds)
        self._counts[bucket] = self._counts.get(bucket, 0) + times
        self._total += times
        self._sum_us += microseconds * times
        self._max_us = max(self._max_us, microseconds)

    def summary(self) -> Latencies:
        """Return the percentiles and the bars of what was counted."""
        mean_ms = self._sum_us / self._total / 1000 if self._total else 0.0
        p50, p90, p99, p999 = (self._percentile_ms(share) for share in (0.5, 0.9, 0.99, 0.999))
        return Latencies(self._total, mean_ms, p50, p90, p99, p999, self._max_us / 1000, self._bars())

    def _percentile_ms(self, share: float) -> float:
        """Return the upper edge of the bucket in which this share of the latencies is reached."""
        wanted = share * self._total
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(_upper_edge_us(bucket), self._max_us) / 1000
        return 0.0

    def _bars(self) -> list[Bar]:
        edges = [*(round(edge * 1000) for edge in _BAR_EDGES_MS), None]
        counts = [0] * len(edges)
        for bucket, count in self._counts.items():
            upper = min(_upper_edge_us(bucket), self._max_us)
            index = next((index for index, edge in enumerate(edges) if edge is None or upper < edge), len(edges) - 1)
            counts[index] += count
        used = [index for index, count in enumerate(counts) if count]
        if not used:
            return []
        shown = range(used[0], used[-1] + 1)
        return [Bar(_BAR_EDGES_MS[index] if index < len(_BAR_EDGES_MS) else None, counts[index]) for index in shown]


def _bucket_of(microseconds: int) -> int:
    power = max(0, microseconds.bit_length() - _STEPS_BITS - 1)
    return power * _STEPS + (microseconds >> power)


def _upper_edge_us(bucket: int) -> int:
    power = max(0, bucket // _STEPS - 1)
    step = bucket - power * _STEPS
    return ((step + 1) << power) - 1
