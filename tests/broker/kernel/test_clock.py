"""Group time: what a majority's clocks have reached, and what is believed of clocks that jump."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger_broker.kernel.clock import MAX_GAP_S, MAX_STEP_MS, STANDS_S, BelievedTime, Carried, reached_by_majority

NOON_MS = 1_700_000_000_000
DAY_MS = 86_400_000
AT = 5_000.0
"""Where the monotonic clock stands at `NOON_MS`."""

SECONDS = st.floats(0.0, MAX_GAP_S)
STEPS = st.lists(st.tuples(SECONDS, st.integers(-2 * DAY_MS, 2 * DAY_MS)), min_size=1, max_size=40)
"""Looks: how long after the one before, and by how much a majority's clocks are wrong then."""


def right_ms(now: float) -> int:
    return NOON_MS + int((now - AT) * 1000)


@given(st.lists(st.none() | st.integers(0, 1000), min_size=1, max_size=7))
def test_a_time_is_reached_when_a_majority_of_all_voters_has_reached_it(clocks: list[int | None]) -> None:
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
    believed, now = BelievedTime(Carried(NOON_MS, AT)), AT
    for seconds, wrong_by_ms in steps:
        now += seconds
        clocks: list[int | None] = [right_ms(now)] * 3
        clocks[node] = right_ms(now) + wrong_by_ms
        reached_ms = reached_by_majority(clocks)
        assert reached_ms is not None
        assert believed.look(reached_ms, now) == right_ms(now)


@given(STEPS)
def test_it_is_never_ahead_of_the_clocks_but_where_the_time_before_is_carried_on(
    steps: list[tuple[float, int]],
) -> None:
    believed, now, before = BelievedTime(None), AT, Carried(0, 0.0)
    for seconds, wrong_by_ms in steps:
        now += seconds
        reached_ms = right_ms(now) + wrong_by_ms
        time_ms = believed.look(reached_ms, now)
        assert time_ms <= max(reached_ms, before.on_to(now) + 1)
        before = Carried(time_ms, now)


@given(STEPS)
def test_it_goes_back_only_where_the_clocks_have_stood_far_behind_for_a_minute(steps: list[tuple[float, int]]) -> None:
    believed, now, before, right_at = BelievedTime(None), AT, Carried(0, 0.0), AT
    for seconds, wrong_by_ms in steps:
        now += seconds
        reached_ms = right_ms(now) + wrong_by_ms
        time_ms = believed.look(reached_ms, now)
        if reached_ms >= before.on_to(now) - MAX_STEP_MS:
            right_at = now
        if time_ms < before.ms:
            assert now - right_at >= STANDS_S
            assert time_ms == reached_ms
        before = Carried(time_ms, now)


WRONG_BY_MS = st.integers(-2 * DAY_MS, 2 * DAY_MS)


@given(STEPS.map(lambda steps: [seconds for seconds, _ in steps]), WRONG_BY_MS, st.integers(0, 39), st.integers(0, 39))
def test_a_majority_that_jumps_for_a_moment_fires_nothing_nor_does_an_election_meanwhile(
    waits: list[float], wrong_by_ms: int, jumps_at: int, election_at: int
) -> None:
    """While the clocks are wrong, a leader is careful for as long as they are; the next one anew."""
    told = Carried(NOON_MS, AT)
    believed, now, wrong_since = BelievedTime(told), AT, None
    for step, seconds in enumerate(waits):
        now += seconds
        if step == election_at:
            believed = BelievedTime(told)
        if step >= jumps_at and wrong_since is None:
            wrong_since = now
        wrong = wrong_since is not None and now - wrong_since < STANDS_S
        time_ms = believed.look(right_ms(now) + (wrong_by_ms if wrong else 0), now)
        assert time_ms <= right_ms(now) + MAX_STEP_MS
        if abs(wrong_by_ms) > MAX_STEP_MS:
            assert abs(time_ms - right_ms(now)) <= 40  # each look may lose what is below a millisecond
        told = Carried(right_ms(now), now)


def test_a_jump_that_stands_for_a_minute_is_believed_either_way() -> None:
    for wrong_by_ms in (DAY_MS, -DAY_MS):
        believed = BelievedTime(Carried(NOON_MS, AT))
        for second in range(60):
            now = AT + 1 + second
            assert believed.look(right_ms(now) + wrong_by_ms, now) == right_ms(now)
        now = AT + 61
        assert believed.look(right_ms(now) + wrong_by_ms, now) == right_ms(now) + wrong_by_ms


def test_a_jump_that_nobody_has_watched_has_not_stood() -> None:
    believed = BelievedTime(Carried(NOON_MS, AT))
    for now in (AT + 1, AT + 1 + STANDS_S):
        assert believed.look(right_ms(now) + DAY_MS, now) == right_ms(now)


def test_clocks_that_jump_to_and_fro_are_not_believed() -> None:
    believed = BelievedTime(Carried(NOON_MS, AT))
    for second in range(1, 300):
        now = AT + second
        wrong_by_ms = DAY_MS if second // 50 % 2 else -DAY_MS
        assert believed.look(right_ms(now) + wrong_by_ms, now) == right_ms(now)


def test_smaller_steps_are_followed_forward_and_waited_for_backward() -> None:
    believed = BelievedTime(Carried(NOON_MS, AT))
    assert believed.look(right_ms(AT + 1) + MAX_STEP_MS, AT + 1) == NOON_MS + 1000 + MAX_STEP_MS
    assert believed.look(right_ms(AT + 2), AT + 2) == NOON_MS + 1000 + MAX_STEP_MS
    assert believed.look(right_ms(AT + 63), AT + 63) == right_ms(AT + 63)


def test_a_leader_that_nothing_was_left_to_believes_what_it_sees_first() -> None:
    assert BelievedTime(None).look(NOON_MS + DAY_MS, AT) == NOON_MS + DAY_MS
