"""Locks that end: given up by 42, by leaving the group (35), or because nobody renews them."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker

from dledger_broker.features.locks.requests import LockRequests
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.features.locks.lock_calls import (
    LOCK,
    RELEASE_ALL,
    UNLOCK,
    UNREGISTER,
    granted,
    lock,
    locks_of,
    owner_of,
    unlock,
    with_groups,
)

T1_0, T1_1 = ("T1", 0), ("T1", 1)


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_groups(broker, "CG", "OTHER")


@pytest.fixture
def anna(broker: ServedBroker) -> FakeClient:
    return broker.client("n1/1")


@pytest.fixture
def bert(broker: ServedBroker) -> FakeClient:
    return broker.client("n1/2")


def leave(client: FakeClient, client_id: str, group: str = "CG") -> None:
    assert client.call(UNREGISTER, {"clientID": client_id, "producerGroup": "", "consumerGroup": group}).code == 0


def test_a_lock_that_is_given_up_goes_to_the_next_who_asks(anna: FakeClient, bert: FakeClient) -> None:
    lock(anna, "anna", T1_0, T1_1)
    unlock(anna, "anna", T1_0)
    assert lock(bert, "bert", T1_0, T1_1) == {T1_0}


def test_nobody_gives_up_what_another_owns(broker: ServedBroker, anna: FakeClient, bert: FakeClient) -> None:
    lock(anna, "anna")
    unlock(bert, "bert")
    unlock(bert, "anna")
    assert owner_of(broker) == "anna"


def test_a_oneway_request_gives_a_lock_up_too(broker: ServedBroker, anna: FakeClient) -> None:
    lock(anna, "anna")
    anna.send(UNLOCK, body=lock_body("anna", T1_0), oneway=True)
    broker.settle()
    assert (owner_of(broker), anna.settled) == (None, 1)


def test_a_lock_is_given_up_behind_the_request_for_it_that_is_under_way(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    anna.send(LOCK, body=lock_body("anna", T1_0))
    anna.send(UNLOCK, body=lock_body("anna", T1_0))
    other = bert.send(LOCK, body=lock_body("bert", T1_0))
    broker.settle()
    assert (granted(bert.answered(other)), owner_of(broker)) == ({T1_0}, "bert")


def test_a_request_behind_a_release_in_flight_is_no_renewal(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    anna.send(UNLOCK, body=lock_body("anna", T1_0))
    other = bert.send(LOCK, body=lock_body("bert", T1_0))
    again = anna.send(LOCK, body=lock_body("anna", T1_0))
    broker.settle()
    assert (granted(bert.answered(other)), granted(anna.answered(again))) == ({T1_0}, set())


def test_a_request_behind_a_release_in_flight_acquires_the_lock_anew(broker: ServedBroker, anna: FakeClient) -> None:
    lock(anna, "anna")
    anna.send(UNLOCK, body=lock_body("anna", T1_0))
    again = anna.send(LOCK, body=lock_body("anna", T1_0))
    broker.settle()
    assert (granted(anna.answered(again)), owner_of(broker)) == ({T1_0}, "anna")


def test_a_renewal_behind_which_the_lock_is_given_up_is_not_granted(broker: ServedBroker, anna: FakeClient) -> None:
    lock(anna, "anna")
    renewal = anna.send(LOCK, body=lock_body("anna", T1_0))
    anna.send(UNLOCK, body=lock_body("anna", T1_0))
    broker.settle()
    assert (granted(anna.answered(renewal)), owner_of(broker)) == (set(), None)


def test_a_late_release_from_an_earlier_connection_changes_nothing(broker: ServedBroker, anna: FakeClient) -> None:
    lock(anna, "anna")
    lock(broker.client("n1/3"), "anna")
    unlock(anna, "anna")
    assert owner_of(broker) == "anna"


def test_late_requests_from_an_earlier_connection_do_not_take_the_lock_from_a_later_one(
    broker: ServedBroker, anna: FakeClient
) -> None:
    earlier = broker.client("n2/1")
    lock(anna, "anna")
    lock(earlier, "anna")
    unlock(earlier, "anna")
    assert owner_of(broker) == "anna"
    lock(earlier, "anna")
    broker.advance(35.1)
    unlock(earlier, "anna")
    assert owner_of(broker) is None


def test_a_release_counts_at_a_new_leader_once_what_an_earlier_one_granted_is_believed_in_no_more(
    broker: ServedBroker, anna: FakeClient
) -> None:
    lock(anna, "anna", T1_0, T1_1)
    broker.memory.node.step_down()
    broker.memory.node.lead()
    unlock(anna, "anna")
    lock(anna, "anna")
    unlock(anna, "anna")
    assert owner_of(broker) == "anna"
    broker.advance(20)
    lock(anna, "anna")
    broker.advance(15.1)
    unlock(anna, "anna")
    assert owner_of(broker) is None


def test_who_leaves_its_group_gives_up_what_it_was_granted_over_that_channel(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna", T1_0, T1_1)
    lock(anna, "anna", T1_0, group="OTHER")
    lock(broker.client("n1/3"), "anna", T1_1)
    lock(bert, "bert", ("T1", 2))
    leave(anna, "anna")
    owners = [owner_of(broker, queue_id=queue_id) for queue_id in range(3)]
    assert (owners, owner_of(broker, group="OTHER")) == ([None, "anna", "bert"], "anna")


def test_who_leaves_gives_up_what_is_under_way_to_it_too(broker: ServedBroker, anna: FakeClient) -> None:
    anna.send(LOCK, body=lock_body("anna", T1_0))
    leave(anna, "anna")
    broker.settle()
    assert owner_of(broker) is None


def test_who_leaves_while_there_is_no_leader_is_answered_and_gives_up_once_there_is_one(
    broker: ServedBroker, anna: FakeClient
) -> None:
    broker.memory.node.step_down()
    asked = anna.send(LOCK, body=lock_body("anna", T1_0))
    leave(anna, "anna")
    assert not anna.has_answer(asked)
    broker.memory.node.lead()
    broker.advance(1)
    assert granted(anna.answered(asked)) == set()
    assert (owner_of(broker), anna.in_flight, anna.forwards) == (None, 0, 0)


def test_who_leaves_is_heard_behind_its_requests_that_wait_for_a_leader(broker: ServedBroker, anna: FakeClient) -> None:
    lock(anna, "anna")
    anna.forwards = 1
    leave(anna, "anna")
    assert owner_of(broker) == "anna"
    anna.forwards -= 1
    broker.advance(0.1)
    assert owner_of(broker) is None


def test_20016_is_answered_like_42(broker: ServedBroker, anna: FakeClient) -> None:
    lock(anna, "anna", T1_0, T1_1)
    assert anna.call(RELEASE_ALL, {"clientID": "anna", "consumerGroup": "CG"}).code == 0
    assert len(locks_of(broker)) == 0
    assert anna.call(RELEASE_ALL, {"clientID": "anna", "consumerGroup": "CG"}).code == 0


def test_locks_that_nobody_renews_are_deleted(broker: ServedBroker, anna: FakeClient) -> None:
    part = broker.service.parts[LockRequests]
    jobs = broker.memory.machine.jobs
    jobs.open(part.jobs, broker.memory.node, broker.service.writer)
    lock(anna, "anna", *(("T1", queue_id) for queue_id in range(500)))
    broker.advance(40)
    lock(anna, "anna", T1_0)
    (gauge,) = part.gauges
    assert (gauge.name, gauge.read()) == ("queue_locks", 500)
    broker.advance(31)
    assert (gauge.read(), owner_of(broker)) == (1, "anna")
    broker.advance(60)
    assert gauge.read() == 0
    assert jobs.failures == {"lock_leases": 0}


def test_a_renewal_that_crosses_the_deletion_of_its_lock_acquires_it_anew(
    broker: ServedBroker, anna: FakeClient
) -> None:
    part = broker.service.parts[LockRequests]
    lock(anna, "anna")
    broker.advance(60.1)
    jobs = broker.memory.machine.jobs
    jobs.open(part.jobs, broker.memory.node, broker.service.writer)
    handle = jobs.handle_of("lock_leases")
    assert handle is not None
    part._changes.end(part._changes.expired(), handle, lambda _: None)
    assert lock(anna, "anna") == {T1_0}
    assert owner_of(broker) == "anna"
