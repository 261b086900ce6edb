"""History of lags: a sample each interval, an hour of them, and a bounded number of groups."""

from __future__ import annotations

from dledger_admin.operations.consumer_groups import Lag
from dledger_console.lags import LAG_SECONDS, MAX_LAG_GROUPS, MAX_LAG_SAMPLES, LagHistory, Lags


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_group_has_a_sample_for_each_interval_and_an_hour_of_them() -> None:
    clock = Clock()
    lags = LagHistory(clock)
    lags.note("billing", Lag(5, 1.5))
    lags.note("billing", Lag(6, 2.5))  # too soon
    assert lags.of("billing") == Lags([5.0], [1.5])
    for number in range(2 * MAX_LAG_SAMPLES):
        clock.now += LAG_SECONDS
        lags.note("billing", Lag(number, None if number % 2 else 1.0))
    assert len(lags.of("billing").messages) == MAX_LAG_SAMPLES
    assert len(lags.of("billing").seconds) == MAX_LAG_SAMPLES // 2
    assert lags.of("none") == Lags()


def test_the_group_that_nobody_looked_at_the_longest_loses_its_history() -> None:
    lags = LagHistory(Clock())
    for number in range(MAX_LAG_GROUPS + 1):
        lags.note(f"g{number}", Lag(1, 1.0))
        lags.note("g0", Lag(1, 1.0))
    assert lags.of("g1") == Lags()
    assert lags.of("g0").messages == [1.0]
