"""Table of halves: each half ends once, the last ends are remembered, and all is in digest and snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import msgspec
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
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import HALF_TOPIC, TopicConfig
from tests.broker.kernel.applied_commands import apply

FIRST = Half(100, 0, 300, 5_000, 0, "PG")
COMMITTED, ROLLED_BACK = HalfOutcome.COMMITTED, HalfOutcome.ROLLED_BACK
SECOND = Half(400, 1, 310, 6_000, 0, "other")


@pytest.fixture
def state() -> BrokerState:
    opened = BrokerState(FEATURES)
    apply(opened, PutTopic(TopicConfig(HALF_TOPIC, 1, 1), 0), OpenHalf((FIRST, SECOND)))
    return opened


def halves(state: BrokerState) -> HalfTable:
    return state.table(HALVES)


def check(half: Half) -> Half:
    """Return a half that was checked, and is checked next at 9 s."""
    return msgspec.structs.replace(half, next_check_ms=9_000, checks=1)


@pytest.mark.parametrize(
    ("commands", "still_open", "ended", "lost"),
    [
        ([EndHalf(100, COMMITTED), EndHalf(100, ROLLED_BACK), EndHalf(77, COMMITTED)], {400: SECOND}, [COMMITTED], 0),
        ([EndHalf(100, ROLLED_BACK), OpenHalf((check(FIRST), check(SECOND)))], {400: check(SECOND)}, [ROLLED_BACK], 0),
        ([TrimQueues(400, ())] * 2, {400: SECOND}, [HalfOutcome.LOST], 1),
        ([DeleteTopic(HALF_TOPIC)], {}, [HalfOutcome.LOST] * 2, 2),
        (
            [EndHalf(100, HalfOutcome.UNDECIDED), EndHalf(400, ROLLED_BACK), *map(ReopenHalf, (100, 400, 77))],
            *({}, [HalfOutcome.REOPENED, ROLLED_BACK], 0),
        ),
    ],
    ids=["it ends once", "a check changes an open one", "a trim", "their topic is deleted", "undecided ones reopen"],
)
def test_a_command_changes_only_halves_that_it_may_change(
    state: BrokerState, commands: list[Command], still_open: dict[int, Half], ended: list[HalfOutcome], lost: int
) -> None:
    apply(state, *commands)
    found = halves(state)
    assert found.open == still_open
    assert found.ended == dict(zip((100, 400), ended, strict=False))
    assert found.lost == lost


def test_only_the_last_ends_of_halves_are_remembered(state: BrokerState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "ENDED_KEPT", 1)
    apply(state, EndHalf(100, HalfOutcome.COMMITTED), EndHalf(400, HalfOutcome.ROLLED_BACK))
    assert halves(state).ended == {400: HalfOutcome.ROLLED_BACK}
    fresh = HalfTable()
    fresh._put_end(400, HalfOutcome.ROLLED_BACK)
    assert halves(state).digest == fresh.digest


def test_each_change_of_halves_is_in_digest_and_snapshot(state: BrokerState) -> None:
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
        told = [(found.open, found.ended, found.lost) for found in (halves(restored), halves(state))]
        assert told[0] == told[1]
    assert (len(digests), 0 in digests) == (6, True)


def test_an_unused_table_of_halves_has_no_frames(state: BrokerState) -> None:
    assert not HalfTable().capture_frames(0.0)
    apply(state, EndHalf(100, HalfOutcome.COMMITTED), EndHalf(400, HalfOutcome.COMMITTED))
    assert halves(state).capture_frames(0.0).keys() == {"ended-halves"}


def test_a_truncated_row_of_a_half_is_reported_as_corrupt() -> None:
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
    """Yield the state after each change.

    The half number n stands at the position 10 n, and halves are opened in order.
    """
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
def test_due_halves_are_found_in_the_order_of_their_next_check(changes: Sequence[Change], now_ms: int) -> None:
    for state in changed(changes):
        found = list(halves(state).due(now_ms))
        due = {half.position for half in halves(state).open.values() if half.next_check_ms <= now_ms}
        assert {half.position for half in found} == due
        assert len(found) == len(due)
        seconds = [half.next_check_ms // 1_000 for half in found]
        assert seconds == sorted(seconds)
        assert halves(state).lowest == min(halves(state).open, default=None)


def test_finding_due_halves_does_not_iterate_over_all_halves(state: BrokerState) -> None:
    class Untouched(dict[int, Half]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all open halves are gone through")

        values = items = __iter__  # type: ignore[assignment]

    halves(state).open = Untouched(halves(state).open)
    assert list(halves(state).due(5_999)) == [FIRST]
