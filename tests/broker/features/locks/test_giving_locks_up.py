"""Locks that end: given up by 42, by leaving the group (35), or because nobody renews them."""

import pytest
from served_broker import ServedBroker

from dledger_broker.features.locks.requests import LockRequests
from tests.broker.features.locks.lock_calls import LOCK, T1_0, T1_1, T1_2, UNLOCK, Locker, unlock


def test_a_client_cannot_unlock_a_queue_of_another_client(anna: Locker, bert: Locker) -> None:
    anna.lock()
    bert.unlock()
    unlock(bert, "anna")
    assert anna.owner() == "anna"


@pytest.mark.parametrize(
    ("is_locked", "asked", "granted", "owner"),
    [
        pytest.param(False, "lock unlock other", "other", "bert", id="a release behind a request frees the lock"),
        pytest.param(True, "unlock other lock", "other", "bert", id="a request behind a release is no renewal"),
        pytest.param(True, "unlock lock", "lock", "anna", id="a request behind a release acquires the lock anew"),
        pytest.param(True, "lock unlock", None, None, id="a renewal followed by a release is not granted"),
    ],
)
def test_requests_of_one_turn_take_effect_in_their_order(
    anna: Locker, bert: Locker, is_locked: bool, asked: str, granted: str | None, owner: str | None
) -> None:
    if is_locked:
        anna.lock()
    senders = {"lock": anna, "unlock": anna, "other": bert}
    codes = {"unlock": UNLOCK}
    sent = {name: (senders[name], senders[name].ask(code=codes.get(name, LOCK))) for name in asked.split()}
    anna.broker.settle()
    client, opaque = sent.pop("unlock")
    assert client.answered(opaque).code == 0
    for name, (client, opaque) in sent.items():
        assert client.granted(opaque) == ({T1_0} if name == granted else set())
    assert anna.owner() == owner


def test_a_late_release_from_an_earlier_connection_changes_nothing(anna: Locker) -> None:
    anna.lock()
    anna.elsewhere("n1/3").lock()
    anna.unlock()
    assert anna.owner() == "anna"


def test_a_late_release_of_an_earlier_connection_never_ends_the_lock_of_a_later_connection(anna: Locker) -> None:
    earlier = anna.elsewhere("n2/1")
    for client in (earlier, anna):
        client.lock()
    for wait_s in (0.0, 35.1):
        anna.broker.advance(wait_s)
        earlier.unlock()
        assert anna.owner() == "anna"
    anna.unlock()
    assert anna.owner() is None


def test_late_requests_of_an_earlier_connection_do_not_take_the_lock_of_a_later_connection(anna: Locker) -> None:
    earlier = anna.elsewhere("n2/1")
    for client in (anna, earlier):
        client.lock()
    earlier.unlock()
    assert anna.owner() == "anna"
    earlier.lock()
    anna.broker.advance(35.1)
    earlier.unlock()
    assert anna.owner() is None


def test_a_new_leader_honors_a_release_once_the_inherited_leases_have_ended(anna: Locker) -> None:
    anna.lock(T1_0, T1_1)
    anna.broker.lead_anew()
    anna.unlock()
    anna.lock()
    anna.unlock()
    assert anna.owner() == "anna"
    anna.broker.advance(20)
    anna.lock()
    anna.broker.advance(15.1)
    anna.unlock()
    assert anna.owner() is None


def test_leaving_a_group_releases_the_locks_that_were_granted_over_that_channel(anna: Locker, bert: Locker) -> None:
    anna.lock(T1_0, T1_1)
    anna.lock(group="OTHER")
    anna.elsewhere("n1/3").lock(T1_1)
    bert.lock(T1_2)
    anna.leave()
    assert [anna.owner(queue_id) for queue_id in range(3)] == [None, "anna", "bert"]
    assert anna.owner(group="OTHER") == "anna"


def test_leaving_a_group_releases_a_lock_whose_grant_is_in_flight(anna: Locker) -> None:
    anna.ask()
    anna.leave()
    anna.broker.settle()
    assert anna.owner() is None


def test_leaving_without_a_leader_is_answered_and_the_next_leader_grants_no_lock(anna: Locker) -> None:
    anna.broker.memory.node.step_down()
    asked = anna.ask()
    anna.leave()
    assert not anna.has_answer(asked)
    anna.broker.memory.node.lead()
    anna.broker.advance(1)
    assert anna.granted(asked) == set()
    assert (anna.owner(), anna.in_flight, anna.forwards) == (None, 0, 0)


def test_leaving_a_group_takes_effect_after_the_clients_forwarded_requests(anna: Locker) -> None:
    anna.lock()
    anna.forwards = 1
    anna.leave()
    assert anna.owner() == "anna"
    anna.forwards -= 1
    anna.broker.advance(0.1)
    assert anna.owner() is None


def open_jobs(broker: ServedBroker) -> LockRequests:
    """Run the job that deletes locks that nobody renews, and return the part that has it."""
    part = broker.service.parts[LockRequests]
    broker.memory.machine.jobs.open(part.jobs, broker.memory.node, broker.service.writer)
    return part


def test_locks_without_renewals_are_deleted(broker: ServedBroker, anna: Locker) -> None:
    open_jobs(broker)
    anna.lock(*(("T1", queue_id) for queue_id in range(500)))
    broker.advance(40)
    anna.lock()
    assert broker.gauge("queue_locks") == 500
    broker.advance(31)
    assert (broker.gauge("queue_locks"), anna.owner()) == (1, "anna")
    broker.advance(60)
    assert broker.gauge("queue_locks") == 0
    assert broker.memory.machine.jobs.failures == {"lock_leases": 0}


def test_a_renewal_that_crosses_the_deletion_of_its_lock_reacquires_the_lock(anna: Locker) -> None:
    anna.lock()
    anna.broker.advance(60.1)
    part = open_jobs(anna.broker)
    handle = anna.broker.memory.machine.jobs.handle_of("lock_leases")
    assert handle is not None
    part._changes.end(part._changes.expired(), handle, lambda _: None)
    assert anna.lock() == {T1_0}
    assert anna.owner() == "anna"
