"""Requests about locks with numbers take effect in the order of their numbers, however they arrive."""

from itertools import permutations

import pytest
from served_broker import ServedBroker

from dledger_broker.features.locks.leases import LATE_S, MAX_REMEMBERED, ReleaseHistory, RequestNumber
from dledger_broker.features.locks.table import LockKey, Owner
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.features.locks.lock_calls import LOCK, T1_0, T1_1, UNLOCK, Locker, granted, numbered


@pytest.mark.parametrize("arrival", list(permutations((1, 2, 3))))
@pytest.mark.parametrize("in_one_turn", [True, False])
def test_the_highest_request_number_decides_in_any_order_of_arrival(
    broker: ServedBroker, anna: Locker, arrival: tuple[int, ...], in_one_turn: bool
) -> None:
    """Request 1 asks for the lock, 2 gives it up, and 3 asks for it again, each over a connection of its own."""
    for number in arrival:
        anna.elsewhere(f"n{number}/1").ask(code=UNLOCK if number == 2 else LOCK, number=number)
        if not in_one_turn:
            broker.settle()
    broker.settle()
    assert anna.owner() == "anna"
    anna.elsewhere("n4/1").unlock(number=4)
    assert anna.owner() is None, "at once, over whichever connection"


@pytest.mark.parametrize("in_one_turn", [True, False])
def test_a_lock_request_that_arrives_after_its_later_release_does_not_take_the_queue(
    broker: ServedBroker, anna: Locker, bert: Locker, in_one_turn: bool
) -> None:
    """A cancelled request for a lock, or a repeated renewal, may take effect behind the release."""
    anna.lock(number=1)
    anna.ask(code=UNLOCK, number=3)
    if not in_one_turn:
        broker.settle()
    other = anna.elsewhere("n2/1")
    late = other.ask(number=2)
    broker.settle()
    assert (anna.owner(), other.granted(late)) == (None, set())
    assert bert.lock() == {T1_0}


def test_an_overtaken_lock_request_gets_all_queues_but_the_released_queue(anna: Locker) -> None:
    anna.unlock(number=2)
    assert anna.lock(T1_0, T1_1, number=1) == {T1_1}
    assert anna.lock(number=3) == {T1_0}


def test_request_numbers_of_an_earlier_session_do_not_apply_to_a_new_session(anna: Locker) -> None:
    anna.lock(number=6, session="before")
    anna.unlock(number=7, session="before")
    assert anna.lock(number=1, session="now") == {T1_0}
    anna.unlock(number=8, session="before")
    assert anna.owner() == "anna"
    anna.lock(number=5, session="before")
    anna.unlock(number=9, session="before")
    assert anna.owner() == "anna", "what was granted in either may still be believed in"


def test_unnumbered_requests_are_ordered_by_channel_beside_numbered_requests(anna: Locker) -> None:
    other = anna.elsewhere("n1/3")
    for granted_by, other_release, release in ((1, None, None), (None, 2, 3)):
        assert anna.lock(number=granted_by) == {T1_0}
        other.unlock(number=other_release)
        assert anna.owner() == "anna"
        anna.unlock(number=release)
        assert anna.owner() is None


def test_a_late_release_at_a_new_leader_does_not_end_a_later_grant_of_its_predecessor(anna: Locker) -> None:
    anna.lock(number=3)
    anna.broker.lead_anew()
    late = anna.elsewhere("n2/1")
    late.lock(number=1)
    late.unlock(number=2)
    assert anna.owner() == "anna"
    anna.lock(number=4)
    anna.broker.advance(35.1)
    late.unlock(number=5)
    assert anna.owner() is None


def test_the_length_of_a_lock_session_is_limited(anna: Locker) -> None:
    answer = anna.call(LOCK, numbered(1, "s" * 65), body=lock_body("anna", T1_0))
    assert (answer.code, "lockSession" in (answer.remark or "")) == (29, True)
    assert granted(anna.call(LOCK, {"lockNumber": "1"}, body=lock_body("anna", T1_0))) == {T1_0}


def test_releases_are_remembered_for_a_limited_time_and_in_a_limited_number() -> None:
    given_up, owner = ReleaseHistory(), Owner("", "anna")

    def note(queue_id: int, number: int, now: float) -> None:
        given_up.note(LockKey("CG", "T1", queue_id), owner, RequestNumber("s", number), now)

    note(0, 5, 0.0)
    note(0, 4, 1.0)
    assert given_up.is_released(LockKey("CG", "T1", 0), owner, RequestNumber("s", 4))
    note(1, 6, 1.5 + LATE_S)
    assert len(given_up) == 1
    for queue_id in range(MAX_REMEMBERED + 1):
        note(queue_id, 7, 2.0 + LATE_S)
    assert len(given_up) == MAX_REMEMBERED
