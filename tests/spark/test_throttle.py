"""A throttle lets through its configured rate, under any load."""

from __future__ import annotations

from dledger_spark.throttle import BURST_S, MIN_REQUEST_BYTES, Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_reading_takes_as_long_as_its_bytes_may_take() -> None:
    clock = Clock()
    throttle = Throttle(1_000_000, clock.time, clock.sleep)
    for _ in range(100):
        clock.now += 0.01
        throttle.spend(50_000)
    assert abs(clock.now - 100 - 5) <= BURST_S


def test_time_that_was_not_used_is_made_up_for_in_part_only() -> None:
    clock = Clock()
    throttle = Throttle(1_000_000, clock.time, clock.sleep)
    clock.now += 60
    throttle.spend(5_000_000)
    assert clock.now == 160 + 5 - BURST_S


def test_reads_are_small_enough_to_be_spread_over_a_second() -> None:
    assert Throttle(None).request_bytes(4 << 20) == 4 << 20
    assert Throttle(1 << 20).request_bytes(4 << 20) == 1 << 18
    assert Throttle(1 << 30).request_bytes(4 << 20) == 4 << 20
    assert Throttle(MIN_REQUEST_BYTES).request_bytes(4 << 20) == MIN_REQUEST_BYTES


def test_without_a_rate_limit_no_wait_occurs() -> None:
    Throttle(None, sleep=lambda _: (_ for _ in ()).throw(AssertionError("it waited"))).spend(1 << 40)
