"""Queue locks (41): who gets them, for how long, and what an answer says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger.errors import BusyError, LogFullError, NotLeaderError
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.features.locks.table import PutLocks
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_remoting.codes import ResponseCode
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.features.locks.lock_calls import LOCK, UNLOCK, granted, lock, locks_of, owner_of, with_groups

T1_0, T1_1, T1_2 = ("T1", 0), ("T1", 1), ("T1", 2)


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_groups(broker, "CG", "OTHER")


@pytest.fixture
def anna(broker: ServedBroker) -> FakeClient:
    return broker.client("n1/1")


@pytest.fixture
def bert(broker: ServedBroker) -> FakeClient:
    return broker.client("n1/2")


def entries(broker: ServedBroker) -> int:
    return len(broker.memory.log.entries)


def test_a_queue_is_locked_by_one_member_of_a_group_at_a_time(anna: FakeClient, bert: FakeClient) -> None:
    assert lock(anna, "anna", T1_0, T1_1) == {T1_0, T1_1}
    assert lock(bert, "bert", T1_0, T1_1, T1_2) == {T1_2}
    assert lock(bert, "bert", T1_0, group="OTHER") == {T1_0}


@pytest.mark.parametrize("code", [LOCK, UNLOCK])
def test_a_queue_of_another_broker_group_is_no_queue_of_this_one(
    broker: ServedBroker, anna: FakeClient, code: int
) -> None:
    lock(anna, "anna", T1_0)
    answer = anna.call(code, body=lock_body("anna", T1_0, T1_1, broker_group="broker-b"))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark == (
        "queue locks body: queue 0 of T1 is of broker group broker-b, and this is broker-a: ask a node of that group"
    )
    assert (owner_of(broker), owner_of(broker, queue_id=1)) == ("anna", None)
    long = anna.call(code, body=lock_body("anna", T1_0, broker_group="b" * 100_000))
    assert long.code == ResponseCode.INVALID_PARAMETER
    assert len(long.remark or "") < 300


def test_queues_that_are_asked_for_at_once_are_locked_by_one_command(broker: ServedBroker, anna: FakeClient) -> None:
    staged: list[object] = []
    stage, machine = broker.memory.machine.stage_command, broker.memory.machine

    def keep(command: Command, done: Done, *, privileged: bool = False) -> None:
        staged.append(command)
        stage(command, done, privileged=privileged)

    machine.stage_command = keep  # type: ignore[method-assign]
    queues = [("T1", queue_id) for queue_id in range(100)]
    assert lock(anna, "anna", *queues) == set(queues)
    assert [len(command.rows) for command in staged if isinstance(command, PutLocks)] == [100]


def test_a_renewal_writes_nothing_and_extends_the_lease(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    before = entries(broker)
    for _ in range(5):
        broker.advance(40)
        assert lock(anna, "anna") == {T1_0}
    assert entries(broker) == before
    broker.advance(59)
    assert lock(bert, "bert") == set()


def test_a_lock_that_nobody_renews_for_60_s_goes_to_the_next_who_asks(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    broker.advance(59.9)
    assert lock(bert, "bert") == set()
    broker.advance(0.2)
    assert lock(bert, "bert") == {T1_0}
    assert lock(anna, "anna") == set()


def test_of_two_that_ask_in_one_turn_the_first_is_granted(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    first, second = anna.send(LOCK, body=lock_body("anna", T1_0)), bert.send(LOCK, body=lock_body("bert", T1_0))
    broker.settle()
    assert (granted(anna.answered(first)), granted(bert.answered(second))) == ({T1_0}, set())


def test_an_owner_whose_lease_ran_out_gets_its_lock_like_anybody(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    broker.advance(60.1)
    other, owner = bert.send(LOCK, body=lock_body("bert", T1_0)), anna.send(LOCK, body=lock_body("anna", T1_0))
    broker.settle()
    assert (granted(bert.answered(other)), granted(anna.answered(owner))) == ({T1_0}, set())
    broker.advance(60.1)
    before = entries(broker)
    assert lock(bert, "bert") == {T1_0}
    assert entries(broker) == before + 1
    broker.advance(60.1)
    assert lock(anna, "anna") == {T1_0}


def test_one_that_asks_twice_at_once_is_granted_the_lock_twice(broker: ServedBroker, anna: FakeClient) -> None:
    asked = [anna.send(LOCK, body=lock_body("anna", T1_0)) for _ in range(2)]
    broker.settle()
    assert [granted(anna.answered(opaque)) for opaque in asked] == [{T1_0}, {T1_0}]


def test_a_renewal_keeps_others_away_from_the_turn_in_which_it_comes(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    broker.advance(59.9)
    confirmations = hold_confirmations(broker)
    renewal = anna.send(LOCK, body=lock_body("anna", T1_0))
    broker.advance(1)
    taken = bert.send(LOCK, body=lock_body("bert", T1_0))
    broker.settle()
    assert not anna.has_answer(renewal)
    for confirmed in confirmations:
        confirmed(None)
    assert (granted(anna.answered(renewal)), granted(bert.answered(taken))) == ({T1_0}, set())


def test_a_renewal_is_granted_only_once_a_majority_has_confirmed_the_leader(
    broker: ServedBroker, anna: FakeClient
) -> None:
    lock(anna, "anna")
    confirmations = hold_confirmations(broker)
    renewal = anna.send(LOCK, body=lock_body("anna", T1_0))
    broker.memory.node.step_down()
    for confirmed in confirmations:
        confirmed(NotLeaderError(None, 1))
    broker.advance(10)
    assert anna.answered(renewal).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_lock_that_is_acquired_is_granted_only_when_that_is_applied(broker: ServedBroker, anna: FakeClient) -> None:
    asked = anna.send(LOCK, body=lock_body("anna", T1_0))
    assert not anna.has_answer(asked)
    broker.memory.node.step_down()
    broker.settle()
    assert anna.answered(asked).ext["outcome"] == "unknown"


def test_a_new_leader_has_every_lease_start_anew_with_35_s(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    broker.advance(50)
    new_leader(broker)
    broker.advance(34.9)
    assert lock(bert, "bert") == set()
    broker.advance(0.2)
    assert lock(bert, "bert") == {T1_0}


def test_a_lease_is_not_carried_from_one_leadership_into_the_next(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    new_leader(broker)
    broker.advance(35.1)
    assert lock(bert, "bert") == {T1_0}


def test_a_group_that_does_not_exist_is_made(make_broker: MakeBroker) -> None:
    """Go's client locks queues before its first heartbeat."""
    broker = make_broker()
    assert lock(broker.client(), "anna") == {T1_0}
    assert "CG" in broker.memory.machine.state.table(GROUPS).by_name


def test_a_group_that_does_not_exist_locks_nothing_where_clients_may_make_none(make_broker: MakeBroker) -> None:
    refused = make_broker(auto_create_group=False).client().call(LOCK, body=lock_body("anna", T1_0))
    assert (refused.code, "CG does not exist" in (refused.remark or "")) == (26, True)


def test_a_lock_outlives_its_topic_and_its_group_until_its_lease_ends(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    lock(anna, "anna")
    assert bert.call(215, {"topic": "T1"}).code == bert.call(207, {"groupName": "CG"}).code == 0
    assert lock(bert, "bert") == set()
    broker.memory.create_topic("T1")
    assert lock(bert, "bert") == set()
    broker.advance(60.1)
    assert lock(bert, "bert") == {T1_0}


def test_a_queue_that_nobody_knows_may_be_locked(anna: FakeClient) -> None:
    assert lock(anna, "anna", ("absent", 7), ("T1", 900)) == {("absent", 7), ("T1", 900)}


def test_the_answer_has_the_queues_as_they_were_named(anna: FakeClient) -> None:
    answer = anna.call(LOCK, body=lock_body("anna", T1_1, T1_0))
    assert answer.body == (
        b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":1,"topic":"T1"},'
        b'{"brokerName":"broker-a","queueId":0,"topic":"T1"}]}'
    )


def test_a_full_disk_lets_ordered_consumers_go_on(broker: ServedBroker, anna: FakeClient) -> None:
    broker.memory.node.stage_error = LogFullError("the disk is full")
    assert lock(anna, "anna") == {T1_0}
    broker.memory.node.reserve_left = 0.4
    assert anna.call(LOCK, body=lock_body("anna", T1_1)).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_what_the_log_refused_can_be_locked_afterwards(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient
) -> None:
    broker.memory.node.stage_error = BusyError("too much is under way")
    assert anna.call(LOCK, body=lock_body("anna", T1_0)).code == ResponseCode.SYSTEM_BUSY
    broker.memory.node.stage_error = None
    assert lock(bert, "bert") == {T1_0}


def test_what_could_not_even_be_proposed_can_be_locked_afterwards(
    broker: ServedBroker, anna: FakeClient, bert: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    with monkeypatch.context() as patched:
        patched.setattr(broker.memory.machine, "stage_command", fail)
        assert anna.call(LOCK, body=lock_body("anna", T1_0)).code == ResponseCode.SYSTEM_ERROR
    assert lock(bert, "bert") == {T1_0}


def test_until_locks_are_active_they_are_refused_and_who_leaves_has_none(make_broker: MakeBroker) -> None:
    broker = make_broker()
    del broker.memory.machine.state.activation.since["locks"]
    client = broker.client()
    before = entries(broker)
    for code in (LOCK, 42):
        answer = client.call(code, body=lock_body("anna", T1_0))
        assert (answer.code, "not active" in (answer.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    assert client.call(35, {"clientID": "anna", "consumerGroup": "CG"}).code == 0
    assert (len(locks_of(broker)), entries(broker)) == (0, before)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "no JSON"),
        (b"[]", "Expected `object`"),
        (b'{"consumerGroup":"CG","clientId":" "}', "clientId is empty"),
        (b'{"consumerGroup":"CG"}', "clientId"),
        (lock_body("x" * 1_025, T1_0), "the limit is 1024"),
        (lock_body("anna", T1_0, group="with space"), "may only contain"),
        (lock_body("anna", ("a/b", 0)), "may only contain"),
        (lock_body("anna", ("T1", -1)), "is negative"),
        (lock_body("anna", ("T1", 1 << 31)), "Expected `int`"),
    ],
)
@pytest.mark.parametrize("code", [41, 42])
def test_a_body_that_makes_no_sense_is_refused_with_a_text_and_changes_nothing(
    broker: ServedBroker, anna: FakeClient, code: int, body: bytes, text: str
) -> None:
    answer = anna.call(code, body=body)
    assert answer.code != 0
    assert text in (answer.remark or "")
    assert len(locks_of(broker)) == 0


def test_the_locks_of_a_group_are_limited(make_broker: MakeBroker) -> None:
    broker = with_groups(make_broker(max_locks_per_group=3), "CG", "OTHER")
    anna, bert = broker.client("n1/1"), broker.client("n1/2")
    assert lock(anna, "anna", T1_0, T1_1) == {T1_0, T1_1}
    assert lock(bert, "bert", T1_0, T1_2, ("T1", 3)) == {T1_2}
    assert broker.counters.max_locks_per_group == 1
    refused = bert.call(LOCK, body=lock_body("bert", ("T1", 3)))
    assert refused.code != 0
    assert "max_locks_per_group" in (refused.remark or "")
    assert lock(anna, "anna", T1_0, T1_1, ("T1", 3)) == {T1_0, T1_1}
    assert lock(bert, "bert", ("T1", 3), group="OTHER") == {("T1", 3)}
    assert owner_of(broker, queue_id=3) is None
    too_many = bert.call(LOCK, body=lock_body("bert", *(("T1", number) for number in range(4))))
    assert "the limit is 3" in (too_many.remark or "")


def test_locks_in_flight_count_towards_the_limit(make_broker: MakeBroker) -> None:
    broker = with_groups(make_broker(max_locks_per_group=2))
    client = broker.client()
    asked = [client.send(LOCK, body=lock_body("anna", ("T1", queue_id))) for queue_id in range(3)]
    broker.settle()
    assert [client.answered(opaque).code for opaque in asked] == [0, 0, ResponseCode.INVALID_PARAMETER]
    broker.advance(61)
    assert lock(client, "bert", T1_0, T1_1) == {T1_0, T1_1}


def new_leader(broker: ServedBroker) -> None:
    broker.memory.node.step_down()
    broker.memory.node.lead()


def hold_confirmations(broker: ServedBroker) -> list[Callable[[Exception | None], None]]:
    """Have no majority confirm the leader until the test calls what is in the list."""
    held: list[Callable[[Exception | None], None]] = []
    broker.memory.node.read_index = held.append  # type: ignore[method-assign]
    return held
