"""Queue locks (41): which client gets them, for how long, and what an answer says."""

from collections.abc import Callable

import pytest
from served_broker import MakeBroker, ServedBroker

from dledger.errors import BusyError, LogFullError, NotLeaderError
from dledger_broker.features.locks.table import LOCKS
from dledger_remoting.codes import ResponseCode
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.features.locks.lock_calls import LOCK, T1_0, T1_1, T1_2, UNLOCK, UNREGISTER, Locker, with_groups


def entries(broker: ServedBroker) -> int:
    return len(broker.memory.log.entries)


def hold_confirmations(broker: ServedBroker) -> list[Callable[[Exception | None], None]]:
    """Keep the leader unconfirmed, and return the list of functions with which a test ends that."""
    held: list[Callable[[Exception | None], None]] = []
    broker.memory.node.read_index = held.append  # type: ignore[method-assign]
    return held


@pytest.mark.parametrize("code", [LOCK, UNLOCK])
def test_lock_requests_for_queues_of_another_broker_group_are_refused(anna: Locker, code: int) -> None:
    anna.lock()
    answer = anna.call(code, body=lock_body("anna", T1_0, T1_1, broker_group="broker-b"))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark == (
        "queue locks body: queue 0 of T1 is of broker group broker-b, and this is broker-a: ask a node of that group"
    )
    assert (anna.owner(), anna.owner(1)) == ("anna", None)
    long = anna.call(code, body=lock_body("anna", T1_0, broker_group="b" * 100_000))
    assert long.code == ResponseCode.INVALID_PARAMETER
    assert len(long.remark or "") < 300


def test_a_renewal_writes_nothing_and_a_lock_without_renewal_for_60_s_goes_to_the_next_requester(
    broker: ServedBroker, anna: Locker, bert: Locker
) -> None:
    anna.lock()
    before = entries(broker)
    for _ in range(5):
        broker.advance(40)
        assert anna.lock() == {T1_0}
    assert entries(broker) == before
    broker.advance(59.9)
    assert bert.lock() == set()
    broker.advance(0.2)
    assert (bert.lock(), anna.lock()) == ({T1_0}, set())


def test_the_first_of_two_clients_in_one_turn_is_granted_the_lock_even_twice(anna: Locker, bert: Locker) -> None:
    first, again, second = anna.ask(), anna.ask(), bert.ask()
    anna.broker.settle()
    assert (anna.granted(first), anna.granted(again), bert.granted(second)) == ({T1_0}, {T1_0}, set())


def test_an_owner_with_an_expired_lease_competes_for_its_lock_like_other_clients(
    broker: ServedBroker, anna: Locker, bert: Locker
) -> None:
    anna.lock()
    broker.advance(60.1)
    other, owner = bert.ask(), anna.ask()
    broker.settle()
    assert (bert.granted(other), anna.granted(owner)) == ({T1_0}, set())
    broker.advance(60.1)
    before = entries(broker)
    assert bert.lock() == {T1_0}
    assert entries(broker) == before + 1
    broker.advance(60.1)
    assert anna.lock() == {T1_0}


def test_a_renewal_protects_its_lock_before_a_majority_confirms_the_leader(anna: Locker, bert: Locker) -> None:
    anna.lock()
    anna.broker.advance(59.9)
    confirmations = hold_confirmations(anna.broker)
    renewal = anna.ask()
    anna.broker.advance(1)
    taken = bert.ask()
    anna.broker.settle()
    assert not anna.has_answer(renewal)
    for confirmed in confirmations:
        confirmed(None)
    assert (anna.granted(renewal), bert.granted(taken)) == ({T1_0}, set())


def test_a_renewal_is_granted_only_once_a_majority_has_confirmed_the_leader(anna: Locker) -> None:
    anna.lock()
    confirmations = hold_confirmations(anna.broker)
    renewal = anna.ask()
    anna.broker.memory.node.step_down()
    for confirmed in confirmations:
        confirmed(NotLeaderError(None, 1))
    anna.broker.advance(10)
    assert anna.answered(renewal).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_lock_is_granted_only_after_its_command_is_applied(anna: Locker) -> None:
    asked = anna.ask()
    assert not anna.has_answer(asked)
    anna.broker.memory.node.step_down()
    anna.broker.settle()
    assert anna.answered(asked).ext["outcome"] == "unknown"


def test_every_lease_starts_again_with_35_s_at_a_new_leader(broker: ServedBroker, anna: Locker, bert: Locker) -> None:
    anna.lock()
    broker.advance(50)
    broker.lead_anew()
    broker.advance(34.9)
    assert bert.lock() == set()
    broker.advance(0.2)
    assert bert.lock() == {T1_0}


def test_a_lock_outlives_its_topic_and_its_group_until_its_lease_ends(anna: Locker, bert: Locker) -> None:
    anna.lock()
    assert bert.call(215, {"topic": "T1"}).code == bert.call(207, {"groupName": "CG"}).code == 0
    assert bert.lock() == set()
    anna.broker.memory.create_topic("T1")
    assert bert.lock() == set()
    anna.broker.advance(60.1)
    assert bert.lock() == {T1_0}


def test_a_full_disk_lets_ordered_consumers_go_on(anna: Locker) -> None:
    anna.broker.memory.node.stage_error = LogFullError("the disk is full")
    assert anna.lock() == {T1_0}
    anna.broker.memory.node.reserve_left = 0.4
    assert anna.answer_to(T1_1).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_queue_can_be_locked_after_a_lock_was_refused_by_the_log_or_could_not_be_proposed(
    broker: ServedBroker, anna: Locker, bert: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(broker.memory.machine, "stage_command", fail)
        assert anna.answer_to().code == ResponseCode.SYSTEM_ERROR
    broker.memory.node.stage_error = BusyError("too much is under way")
    assert anna.answer_to(T1_0, T1_1).code == ResponseCode.SYSTEM_BUSY
    broker.memory.node.stage_error = None
    assert bert.lock(T1_0, T1_1) == {T1_0, T1_1}


def test_leaving_is_accepted_before_locks_are_active(anna: Locker) -> None:
    del anna.broker.memory.machine.state.activation.since["locks"]
    before = entries(anna.broker)
    assert anna.call(UNREGISTER, {"clientID": "anna", "consumerGroup": "CG"}).code == 0
    assert (len(anna.broker.table(LOCKS)), entries(anna.broker)) == (0, before)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[]", "Expected `object`"),
        (b'{"consumerGroup":"CG","clientId":" "}', "clientId is empty"),
        (b'{"consumerGroup":"CG"}', "clientId"),
        (lock_body("x" * 1_025, T1_0), "the limit is 1024"),
        (lock_body("anna", T1_0, group="with space"), "may only contain"),
        (lock_body("anna", ("a/b", 0)), "may only contain"),
        (lock_body("anna", ("T1", 1 << 31)), "Expected `int`"),
    ],
)
@pytest.mark.parametrize("code", [LOCK, UNLOCK])
def test_an_invalid_lock_body_is_refused_with_a_text_and_changes_nothing(
    anna: Locker, code: int, body: bytes, text: str
) -> None:
    answer = anna.call(code, body=body)
    assert answer.code != 0
    assert text in (answer.remark or "")
    assert len(anna.broker.table(LOCKS)) == 0


def test_the_locks_of_a_group_are_limited(make_broker: MakeBroker) -> None:
    broker = with_groups(make_broker(max_locks_per_group=3), "CG", "OTHER")
    anna, bert = (Locker(broker, f"n1/{name}", name) for name in ("anna", "bert"))
    t1_3 = ("T1", 3)
    assert anna.lock(T1_0, T1_1) == {T1_0, T1_1}
    assert bert.lock(T1_0, T1_2, t1_3) == {T1_2}
    assert broker.counters.max_locks_per_group == 1
    assert bert.answer_to(t1_3).code != 0
    assert anna.lock(T1_0, T1_1, t1_3) == {T1_0, T1_1}
    assert bert.lock(t1_3, group="OTHER") == {t1_3}
    assert anna.owner(3) is None


def test_locks_in_flight_count_towards_the_limit(make_broker: MakeBroker) -> None:
    broker = with_groups(make_broker(max_locks_per_group=2))
    anna, bert = (Locker(broker, "n1/1", name) for name in ("anna", "bert"))
    asked = [anna.ask(queue) for queue in (T1_0, T1_1, T1_2)]
    broker.settle()
    assert [anna.answered(opaque).code for opaque in asked] == [0, 0, ResponseCode.INVALID_PARAMETER]
    broker.advance(61)
    assert bert.lock(T1_0, T1_1) == {T1_0, T1_1}
