"""Percentiles of the histogram are near those of the values themselves, and its memory is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger_admin.commands.bench import render
from dledger_admin.operations.benchmarks import BenchResult
from dledger_admin.operations.latencies import Histogram


@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=300))
def test_percentiles_are_at_most_a_bucket_above_the_value(microseconds):
    histogram = Histogram()
    for value in microseconds:
        histogram.add(value / 1e6)
    found = histogram.summary()
    ordered = sorted(microseconds)
    for share, told_ms in ((0.5, found.p50_ms), (0.9, found.p90_ms), (0.99, found.p99_ms), (0.999, found.p999_ms)):
        index = next(index for index in range(len(ordered)) if index + 1 >= share * len(ordered))
        assert ordered[index] / 1000 <= told_ms <= ordered[index] / 1000 * (1 + 1 / 32) + 1e-9
    assert found.max_ms == ordered[-1] / 1000
    assert found.count == sum(bar.count for bar in found.bars) == len(ordered)


def test_many_different_latencies_take_few_buckets():
    histogram = Histogram()
    for value in range(200_000):
        histogram.add(value / 1e6)
    assert len(histogram._counts) < 32 * 18


def test_without_a_latency_there_is_nothing_to_show():
    empty = Histogram().summary()
    assert (empty.count, empty.p99_ms, empty.bars) == (0, 0.0, [])


def test_failures_are_told_beside_the_figures():
    histogram = Histogram()
    histogram.add(0.0004, 3)
    histogram.add(9.0)
    result = BenchResult(
        kind="send", topic="bench-1", messages=4, body_bytes=16, seconds=2.0, messages_per_s=2.0, bytes_per_s=32.0,
        latency=histogram.summary(), failed=2, missing=0, error="no leader", kept=False,
    )  # fmt: skip
    text = render(result)
    assert "4 messages of 16 bytes sent in 2.00 s: 2 messages" in text
    assert "2 messages were not acknowledged; the first error: no leader" in text
    assert not result.is_complete
    bars = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert bars[0][:4] == ["<", "0.5", "ms", "3"]
    assert bars[-1][0] == "longer"
