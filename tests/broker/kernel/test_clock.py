"""Group time: the time that the clocks of a majority have reached, and how far clocks that jump are believed."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from dledger_broker.kernel.clock import (
    JUMP_BELIEVED_S,
    MAX_GAP_S,
    MAX_STEP_MS,
    BelievedTime,
    ClockReading,
    reached_by_majority,
)

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000
AT = 5_000.0
"""Monotonic clock at `NOON_MS`, in seconds."""

SECONDS = st.floats(0.0, MAX_GAP_S)
STEPS = st.lists(st.tuples(SECONDS, st.integers(-2 * DAY_MS, 2 * DAY_MS)), min_size=1, max_size=40)
"""Strategy for looks: seconds since the previous look, and milliseconds by which a majority's clocks are wrong."""


def right_ms(now: float) -> int:
    return NOON_MS + int((now - AT) * 1000)


def looks(steps: list[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Return the time of each look at the clocks, and the time that a majority of clocks shows then."""
    now = AT
    for seconds, wrong_by_ms in steps:
        now += seconds
        yield now, right_ms(now) + wrong_by_ms


@given(st.lists(st.none() | st.integers(0, 1000), min_size=1, max_size=7))
def test_a_time_is_reached_once_the_clocks_of_a_majority_have_reached_the_time(clocks: list[int | None]) -> None:
    def reach(time_ms: int) -> bool:
        return sum(clock is not None and clock >= time_ms for clock in clocks) * 2 > len(clocks)

    reached_ms = reached_by_majority(clocks)
    if reached_ms is None:
        assert not reach(0)
    else:
        assert reach(reached_ms)
        assert not reach(reached_ms + 1)


@given(STEPS, st.sampled_from([0, 1, 2]))
def test_the_clock_of_one_node_of_three_changes_nothing(steps: list[tuple[float, int]], node: int) -> None:
    believed = BelievedTime(ClockReading(NOON_MS, AT))
    for now, wrong_ms in looks(steps):
        clocks: list[int | None] = [right_ms(now)] * 3
        clocks[node] = wrong_ms
        reached_ms = reached_by_majority(clocks)
        assert reached_ms is not None
        assert believed.look(reached_ms, now) == right_ms(now)


@given(STEPS)
def test_group_time_is_ahead_only_when_carried_over_and_goes_back_only_after_a_minute(
    steps: list[tuple[float, int]],
) -> None:
    """It goes back if the clocks stood far behind for the whole minute."""
    believed, before, right_at = BelievedTime(None), ClockReading(0, 0.0), AT
    for now, reached_ms in looks(steps):
        time_ms = believed.look(reached_ms, now)
        assert time_ms <= max(reached_ms, before.extrapolate(now) + 1)
        if reached_ms >= before.extrapolate(now) - MAX_STEP_MS:
            right_at = now
        if time_ms < before.ms:
            assert now - right_at >= JUMP_BELIEVED_S
            assert time_ms == reached_ms
        before = ClockReading(time_ms, now)


WRONG_BY_MS = st.integers(-2 * DAY_MS, 2 * DAY_MS)


@given(STEPS.map(lambda steps: [seconds for seconds, _ in steps]), WRONG_BY_MS, st.integers(0, 39), st.integers(0, 39))
def test_a_short_clock_jump_of_a_majority_does_not_move_group_time_even_in_an_election(
    waits: list[float], wrong_by_ms: int, jumps_at: int, election_at: int
) -> None:
    """If a majority's clocks jump for less than a minute, nothing fires early, also if an election comes meanwhile.

    Each leader distrusts the clocks while they are wrong, and the next leader does so anew.
    """
    told = ClockReading(NOON_MS, AT)
    believed, now, wrong_since = BelievedTime(told), AT, None
    for step, seconds in enumerate(waits):
        now += seconds
        if step == election_at:
            believed = BelievedTime(told)
        if step >= jumps_at and wrong_since is None:
            wrong_since = now
        wrong = wrong_since is not None and now - wrong_since < JUMP_BELIEVED_S
        time_ms = believed.look(right_ms(now) + (wrong_by_ms if wrong else 0), now)
        assert time_ms <= right_ms(now) + MAX_STEP_MS
        if abs(wrong_by_ms) > MAX_STEP_MS:
            assert abs(time_ms - right_ms(now)) <= 40  # each look may drop a fraction of a millisecond
        told = ClockReading(right_ms(now), now)


def test_a_clock_jump_that_lasts_a_minute_is_believed_in_either_direction() -> None:
    for wrong_by_ms in (DAY_MS, -DAY_MS):
        believed = BelievedTime(ClockReading(NOON_MS, AT))
        for second in range(60):
            now = AT + 1 + second
            assert believed.look(right_ms(now) + wrong_by_ms, now) == right_ms(now)
        now = AT + 61
        assert believed.look(right_ms(now) + wrong_by_ms, now) == right_ms(now) + wrong_by_ms


def test_unobserved_clock_jumps_and_clocks_that_jump_back_and_forth_are_not_believed() -> None:
    believed = BelievedTime(ClockReading(NOON_MS, AT))
    for now in (AT + 1, AT + 1 + JUMP_BELIEVED_S):
        assert believed.look(right_ms(now) + DAY_MS, now) == right_ms(now)
    believed = BelievedTime(ClockReading(NOON_MS, AT))
    for second in range(1, 300):
        now = AT + second
        wrong_by_ms = DAY_MS if second // 50 % 2 else -DAY_MS
        assert believed.look(right_ms(now) + wrong_by_ms, now) == right_ms(now)


def test_group_time_follows_small_steps_forward_and_waits_for_small_steps_backward() -> None:
    believed = BelievedTime(ClockReading(NOON_MS, AT))
    assert believed.look(right_ms(AT + 1) + MAX_STEP_MS, AT + 1) == NOON_MS + 1000 + MAX_STEP_MS
    assert believed.look(right_ms(AT + 2), AT + 2) == NOON_MS + 1000 + MAX_STEP_MS
    assert believed.look(right_ms(AT + 63), AT + 63) == right_ms(AT + 63)


def test_a_leader_without_earlier_group_time_believes_the_first_clocks() -> None:
    assert BelievedTime(None).look(NOON_MS + DAY_MS, AT) == NOON_MS + DAY_MS
