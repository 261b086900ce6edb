"""The table of halves: one end each, the last ones remembered, all of it in digest and snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger_broker.features import FEATURES
from dledger_broker.features.transactions import table
from dledger_broker.features.transactions.table import (
    HALVES,
    EndHalf,
    Half,
    HalfOutcome,
    HalfTable,
    OpenHalf,
    ReopenHalf,
)
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import HALF_TOPIC, TopicConfig
from tests.broker.kernel.applied_commands import apply

FIRST = Half(100, 0, 300, 5_000, 0, "PG")
SECOND = Half(400, 1, 310, 6_000, 0, "other")


@pytest.fixture
def state() -> BrokerState:
    opened = BrokerState(FEATURES)
    apply(opened, PutTopic(TopicConfig(HALF_TOPIC, 1, 1), 0), OpenHalf((FIRST, SECOND)))
    return opened


def halves(state: BrokerState) -> HalfTable:
    return state.table(HALVES)


def test_a_half_ends_once(state: BrokerState) -> None:
    apply(state, EndHalf(100, HalfOutcome.COMMITTED), EndHalf(100, HalfOutcome.ROLLED_BACK))
    apply(state, EndHalf(77, HalfOutcome.COMMITTED))
    assert halves(state).open == {400: SECOND}
    assert halves(state).ended == {100: HalfOutcome.COMMITTED}


def test_a_check_is_noted_of_an_open_half_alone(state: BrokerState) -> None:
    apply(state, EndHalf(100, HalfOutcome.ROLLED_BACK))
    checked = [Half(half.position, half.queue_offset, half.size, 9_000, 1, half.group) for half in (FIRST, SECOND)]
    apply(state, OpenHalf(tuple(checked)))
    assert halves(state).open == {400: checked[1]}
    assert halves(state).ended == {100: HalfOutcome.ROLLED_BACK}


def test_a_trim_loses_what_stands_below_it(state: BrokerState) -> None:
    apply(state, TrimQueues(400, ()))
    assert halves(state).open == {400: SECOND}
    assert halves(state).ended == {100: HalfOutcome.LOST}
    assert halves(state).lost == 1
    apply(state, TrimQueues(400, ()))
    assert halves(state).lost == 1


def test_without_their_topic_all_halves_are_lost(state: BrokerState) -> None:
    apply(state, DeleteTopic(HALF_TOPIC))
    assert not halves(state).open
    assert set(halves(state).ended.values()) == {HalfOutcome.LOST}


def test_only_what_ended_undecided_is_reopened_and_once(state: BrokerState) -> None:
    apply(state, EndHalf(100, HalfOutcome.UNDECIDED), EndHalf(400, HalfOutcome.ROLLED_BACK))
    apply(state, ReopenHalf(100), ReopenHalf(400), ReopenHalf(77))
    assert halves(state).ended == {100: HalfOutcome.REOPENED, 400: HalfOutcome.ROLLED_BACK}


def test_the_last_ends_are_remembered(state: BrokerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ENDED_KEPT", 1)
    apply(state, EndHalf(100, HalfOutcome.COMMITTED), EndHalf(400, HalfOutcome.ROLLED_BACK))
    assert halves(state).ended == {400: HalfOutcome.ROLLED_BACK}
    fresh = HalfTable()
    fresh._put_end(400, HalfOutcome.ROLLED_BACK)
    assert halves(state).digest == fresh.digest


def test_everything_is_in_digest_and_snapshot(state: BrokerState) -> None:
    digests = {HalfTable().digest, halves(state).digest}
    for command in (
        OpenHalf((Half(400, 1, 310, 9_000, 3, "other"),)),
        EndHalf(100, HalfOutcome.UNDECIDED),
        ReopenHalf(100),
        TrimQueues(401, ()),
    ):
        apply(state, command)
        digests.add(halves(state).digest)
        restored = decode_state([b"".join(encode_state(state, 0.0))], 0.0, FEATURES)
        assert restored.digest() == state.digest()
        assert (halves(restored).open, halves(restored).ended, halves(restored).lost) == (
            halves(state).open,
            halves(state).ended,
            halves(state).lost,
        )
    assert len(digests) == 6
    assert 0 in digests


def test_a_table_in_which_nothing_ever_was_has_no_frames(state: BrokerState) -> None:
    assert not HalfTable().capture_frames(0.0)
    apply(state, EndHalf(100, HalfOutcome.COMMITTED), EndHalf(400, HalfOutcome.COMMITTED))
    assert halves(state).capture_frames(0.0).keys() == {"ended-halves"}


def test_a_row_that_is_cut_off_is_no_row() -> None:
    payload = OpenHalf((FIRST, SECOND)).to_payload()
    assert OpenHalf.from_payload(payload).halves == (FIRST, SECOND)
    whole = len(OpenHalf((FIRST,)).to_payload())
    for size in range(len(payload)):
        if size not in (0, whole):
            with pytest.raises(CorruptionError):
                OpenHalf.from_payload(payload[:size])


Change: TypeAlias = tuple[str, int, int]

NUMBERS = st.integers(0, 12)
CHANGES = st.lists(
    st.tuples(st.sampled_from(("open", "check", "end", "trim", "restore")), NUMBERS, st.integers(0, 9_000))
)


def changed(changes: Sequence[Change]) -> Iterator[BrokerState]:
    """States after each change; a half with the number n stands at the position 10 n, and they are opened in order."""
    state, opened = BrokerState(FEATURES), 0
    apply(state, PutTopic(TopicConfig(HALF_TOPIC, 1, 1), 0))
    for what, number, next_check_ms in changes:
        position = 10 * (opened if what == "open" else number)
        half = Half(position, number, 100, next_check_ms, 1 if what == "check" else 0, "PG")
        if what in ("open", "check"):
            opened += what == "open"
            apply(state, OpenHalf((half,)))
        elif what == "end":
            apply(state, EndHalf(position, HalfOutcome.COMMITTED))
        elif what == "trim":
            apply(state, TrimQueues(position, ()))
        else:
            state = decode_state([b"".join(encode_state(state, 0.0))], 0.0, FEATURES)
        yield state


@given(CHANGES, st.integers(0, 9_000))
def test_those_that_are_due_are_found_by_their_next_check(changes: Sequence[Change], now_ms: int) -> None:
    for state in changed(changes):
        found = list(halves(state).due(now_ms))
        due = {half.position for half in halves(state).open.values() if half.next_check_ms <= now_ms}
        assert {half.position for half in found} == due
        assert len(found) == len(due)
        seconds = [half.next_check_ms // 1_000 for half in found]
        assert seconds == sorted(seconds)
        assert halves(state).lowest == min(halves(state).open, default=None)


def test_a_look_touches_no_half_that_is_not_due(state: BrokerState) -> None:
    class Untouched(dict[int, Half]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all open halves are gone through")

        values = items = __iter__  # type: ignore[assignment]

    halves(state).open = Untouched(halves(state).open)
    assert list(halves(state).due(5_999)) == [FIRST]
