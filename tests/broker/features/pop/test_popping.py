"""Pops (200050): who gets which messages, what waits, what is refused."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, records

from dledger_broker.features.pop.changes import MAX_ROWS
from dledger_broker.features.pop.commands import Pop
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_remoting.codes import ResponseCode
from dledger_remoting.pop import Retry
from dledger_remoting.properties import parse_properties
from tests.broker.features.pop.pop_calls import (
    FOUND,
    FULL,
    HIDDEN_S,
    NOTHING,
    NOTIFY,
    PEEK,
    POLLING,
    POP,
    ack,
    ask,
    committed,
    messages,
    pop,
    pop_ext,
    queue_of,
    retry_of,
    table_of,
    wait,
    with_group,
    with_revivals,
)


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    return with_revivals(with_group(broker))


@pytest.fixture
def staged(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> list[Pop]:
    """The pops that are proposed."""
    pops: list[Pop] = []
    machine = broker.memory.machine
    stage = machine.stage_command

    def keep(command: Command, done: Done, *, privileged: bool = False) -> None:
        if isinstance(command, Pop):
            pops.append(command)
        stage(command, done, privileged=privileged)

    monkeypatch.setattr(machine, "stage_command", keep)
    return pops


def bodies(popped: list[object]) -> list[bytes]:
    return sorted(message.body for message in popped)  # type: ignore[attr-defined]


def test_two_members_of_a_group_get_different_messages_of_one_queue(broker: ServedBroker, client: FakeClient) -> None:
    for number in range(4):
        client.send_message("T1", b"%d" % number)
    other = broker.client("client/2")
    assert [message.body for message in pop(client, maxMsgNums="3")] == [b"0", b"1", b"2"]
    assert [message.body for message in pop(other)] == [b"3"]
    assert pop(client) == []


def test_a_pop_of_any_queue_takes_from_all_until_it_is_full(broker: ServedBroker, client: FakeClient) -> None:
    for queue_id in range(4):
        for number in range(3):
            client.send_message("T1", b"%d-%d" % (queue_id, number), queue_id)
    first = pop(client, maxMsgNums="8")
    second = pop(client)
    assert (len(first), len(second)) == (8, 4)
    assert len({message.body for message in first + second}) == 12
    assert [queue_of(broker, queue_id=queue_id).open_count for queue_id in range(4)] == [3] * 4


def test_a_pop_of_one_queue_takes_from_no_other_one(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1", b"a", 0)
    client.send_message("T1", b"b", 1)
    assert bodies(pop(client, queueId="1")) == [b"b"]
    assert pop(client, queueId="2") == []


def test_groups_pop_independently(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1", b"a")
    assert bodies(pop(client)) == [b"a"]
    assert bodies(pop(client, consumerGroup="OTHER")) == [b"a"]


def test_the_committed_offset_is_the_lowest_that_is_not_done_with(broker: ServedBroker, client: FakeClient) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)
    popped = pop(client)
    assert committed(broker) == 0
    assert ack(client, popped[1]) == FOUND
    assert committed(broker) == 0
    assert ack(client, popped[0]) == FOUND
    assert committed(broker) == 2
    assert ack(client, popped[2]) == FOUND
    assert committed(broker) == 3
    assert not table_of(broker).has_deliveries


def test_a_consumer_that_commits_moves_nothing_in_a_queue_that_its_group_pops(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send_message("T1", b"a")
    pop(client)
    offset = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"}
    client.send(15, offset)
    broker.advance(1)
    assert committed(broker) == 0


def test_the_first_pop_begins_where_the_group_has_committed_however_lately(
    broker: ServedBroker, client: FakeClient
) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)
    client.send(15, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "2"})
    popping = client.send(POP, pop_ext())
    broker.settle()
    assert bodies(messages(client.answered(popping))) == [b"2"]


def test_a_group_that_begins_at_the_end_gets_what_comes_after_its_first_pop(
    broker: ServedBroker, client: FakeClient
) -> None:
    for number in range(3):
        client.send_message("T1", b"%d" % number)
    queue = broker.memory.queue("T1")
    queue.first_offset = 1  # or the topic is so young that everything is still there
    assert pop(client, initMode="1") == []
    client.send_message("T1", b"3")
    assert bodies(pop(client, initMode="1")) == [b"3"]


def test_what_a_filter_rejects_is_passed_over(broker: ServedBroker, client: FakeClient) -> None:
    for number, tag in enumerate(("a", "b", "a", "b", "b")):
        client.send_message("T1", b"%d" % number, properties=f"TAGS\x01{tag}\x02")
    popped = pop(client, exp="a", expType="TAG")
    assert [message.body for message in popped] == [b"0", b"2"]
    assert pop(client, exp="a", expType="TAG") == []
    assert queue_of(broker).next_offset == 5
    assert [ack(client, message) for message in popped] == [FOUND, FOUND]
    assert committed(broker) == 5


def test_a_filter_in_sql92_looks_at_properties(broker: ServedBroker, client: FakeClient) -> None:
    for number in range(6):
        client.send_message("T1", b"%d" % number, properties=f"n\x01{number}\x02")
    popped = pop(client, exp="n > 1 AND n <> 4", expType="SQL92")
    assert [message.body for message in popped] == [b"2", b"3", b"5"]
    for fault in (pop_ext(exp="n >", expType="SQL92"), pop_ext(exp="n", expType="UNKNOWN")):
        assert client.call(POP, fault).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_pop_waits_for_messages_until_its_poll_time_is_over(broker: ServedBroker, client: FakeClient) -> None:
    waiting = client.send(POP, pop_ext(pollTime="15000"))
    broker.advance(14.9)
    assert not client.has_answer(waiting)
    broker.advance(0.2)
    answer = client.answered(waiting)
    assert answer.code == NOTHING
    assert answer.ext.keys() >= {"popTime", "invisibleTime", "reviveQid", "restNum"}
    assert (client.held, client.in_flight) == (0, 0)


def test_a_message_that_comes_is_given_to_one_of_those_who_wait(broker: ServedBroker, client: FakeClient) -> None:
    others = [broker.client(f"client/{number}") for number in range(3)]
    waiting = [other.send(POP, pop_ext(pollTime="15000")) for other in others]
    broker.settle()
    assert client.call(POLLING, {"consumerGroup": "CG", "topic": "T1", "queueId": "-1"}).ext["pollingNum"] == "3"
    client.send_message("T1", b"a", 2)
    answered = [other.has_answer(opaque) for other, opaque in zip(others, waiting, strict=True)]
    assert sorted(answered) == [False, False, True]
    client.send_message("T1", b"b")
    client.send_message("T1", b"c")
    assert bodies(
        [m for other, opaque in zip(others, waiting, strict=True) for m in messages(other.answered(opaque))]
    ) == [
        b"a",
        b"b",
        b"c",
    ]


def test_waiting_pops_are_answered_when_their_topic_is_deleted_and_when_the_leader_is_deposed(
    broker: ServedBroker, client: FakeClient
) -> None:
    waiting = client.send(POP, pop_ext(pollTime="15000"))
    broker.settle()
    broker.memory.delete_topic("T1")
    assert client.answered(waiting).code == ResponseCode.TOPIC_NOT_EXIST
    broker.memory.create_topic("T2")
    waiting = client.send(POP, pop_ext("T2", pollTime="15000"))
    broker.settle()
    broker.memory.node.step_down()
    broker.group.on_leadership(broker.memory.machine.leadership)
    broker.settle()
    assert client.answered(waiting).code == NOTHING


def test_pops_and_questions_that_wait_are_refused_at_once_when_their_group_is_paused_and_no_other_ones(
    broker: ServedBroker, client: FakeClient
) -> None:
    with_group(broker, "OTHER")
    waiting = client.send(POP, pop_ext(pollTime="15000"))
    question = client.send(NOTIFY, pop_ext(pollTime="15000"))
    other = client.send(POP, pop_ext(pollTime="15000", consumerGroup="OTHER"))
    broker.settle()
    assert client.held == 3
    with_group(broker, consume_enable=False)
    answers = [client.answered(opaque) for opaque in (waiting, question)]
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * 2
    assert all("consumer group CG may not consume" in (answer.remark or "") for answer in answers)
    assert (client.held, client.in_flight, client.has_answer(other)) == (1, 0, False)
    with_group(broker)
    client.send_message("T1", b"a")
    assert bodies(messages(client.answered(other))) == [b"a"]
    assert bodies(pop(client)) == [b"a"]


def test_more_than_max_pop_in_flight_are_answered_with_back_pressure(make_broker: MakeBroker) -> None:
    broker = with_group(make_broker(max_pop_in_flight=40))
    client = broker.client()
    for number in range(50):
        client.send_message("T1", b"%d" % number)
    popped = pop(client) + pop(client)
    assert len(popped) == 40
    answer = client.call(POP, pop_ext(pollTime="15000"))
    assert (answer.code, broker.counters.max_pop_in_flight) == (FULL, 1)
    assert "max_pop_in_flight" in (answer.remark or "")
    assert ack(client, popped[0]) == FOUND
    assert len(pop(client)) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": "33"}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": "43200001"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"attemptId": "x" * 129}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "ABSENT"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION),
        ({"consumerGroup": "no/group"}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_pop_that_cannot_be_is_refused(client: FakeClient, fields: dict[str, str], code: int) -> None:
    answer = client.call(POP, pop_ext(**fields))
    assert answer.code == code, answer.remark


def test_a_group_that_may_not_consume_pops_nothing(broker: ServedBroker, client: FakeClient) -> None:
    with_group(broker, "SHUT", consume_enable=False)
    assert client.call(POP, pop_ext(consumerGroup="SHUT")).code == ResponseCode.NO_PERMISSION


def test_messages_that_nobody_acknowledges_come_again_once_their_time_is_over(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send_message("T1", b"a")
    client.send_message("T1", b"b")
    first = pop(client)
    assert ack(client, first[0]) == FOUND
    wait(broker, HIDDEN_S - 1)
    assert pop(client) == []
    wait(broker, 2)
    (again,) = pop(client)
    assert (again.body, again.topic, again.reconsume_times) == (b"b", "T1", 1)
    assert (again.point.retry, again.real_topic) == (Retry.V1, retry_of())
    assert ack(client, first[1]) == ResponseCode.NO_MESSAGE
    assert ack(client, again) == FOUND
    assert (committed(broker), committed(broker, retry_of())) == (2, 1)
    wait(broker, 3 * HIDDEN_S)
    assert pop(client) == []


def test_the_second_form_of_retry_topics_has_its_own_flag(make_broker: MakeBroker) -> None:
    broker = with_revivals(with_group(make_broker(pop_retry_topic_v2=True)))
    client = broker.client()
    client.send_message("T1", b"a")
    pop(client)
    wait(broker, HIDDEN_S + 1)
    (again,) = pop(client)
    assert (again.point.retry, again.real_topic) == (Retry.V2, "%RETRY%CG+T1")
    assert ack(client, again) == FOUND


def test_a_waiting_pop_gets_what_comes_again(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1", b"a")
    pop(client)
    broker.advance(30)
    waiting = client.send(POP, pop_ext(pollTime="60000"))
    wait(broker, HIDDEN_S - 30.5)
    assert not client.has_answer(waiting)
    wait(broker, 1)
    assert bodies(messages(client.answered(waiting))) == [b"a"]


def test_what_came_too_often_is_a_dead_letter(broker: ServedBroker, client: FakeClient) -> None:
    with_group(broker, retry_max_times=2)
    client.send_message("T1", b"a")
    seen = []
    for _ in range(4):
        seen += [message.reconsume_times for message in pop(client)]
        wait(broker, HIDDEN_S + 1)
    assert seen == [0, 1, 2]
    (letter,) = records(ask(client, 11, pull_ext("%DLQ%CG")))
    assert (letter.body, parse_properties(letter.properties)["RETRY_TOPIC"]) == (b"a", "T1")
    assert not table_of(broker).has_deliveries


def test_peeking_takes_nothing(broker: ServedBroker, client: FakeClient) -> None:
    client.send_message("T1", b"a")
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "maxMsgNums": "8"}
    for _ in range(2):
        assert bodies(messages(client.call(PEEK, ext))) == [b"a"]
    assert bodies(pop(client)) == [b"a"]
    assert client.call(PEEK, ext).code == ResponseCode.PULL_NOT_FOUND


def test_a_question_waits_until_there_is_something_to_pop(broker: ServedBroker, client: FakeClient) -> None:
    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "-1", "pollTime": "15000", "bornTime": "0"}
    waiting = client.send(NOTIFY, ext)
    broker.settle()
    assert not client.has_answer(waiting)
    client.send_message("T1", b"a")
    assert client.answered(waiting).ext["hasMsg"] == "true"
    assert client.call(NOTIFY, ext).ext["hasMsg"] == "true"
    pop(client)
    late = client.send(NOTIFY, ext)
    broker.advance(15.1)
    assert client.answered(late).ext["hasMsg"] == "false"


def test_a_first_pop_of_very_many_queues_finds_what_is_in_the_last_one(
    broker: ServedBroker, client: FakeClient
) -> None:
    """A row for each of the empty queues is more than a segment holds."""
    wide = "W" * 127
    broker.memory.create_topic(wide, 10_000)
    client.send_message(wide, b"a", 9_999)
    assert bodies(pop(client, wide)) == [b"a"]


def test_a_first_pop_of_many_queues_begins_in_each_of_them(
    broker: ServedBroker, client: FakeClient, staged: list[Pop]
) -> None:
    broker.memory.create_topic("WIDE", 3 * MAX_ROWS + 1)
    waiting = client.send(POP, pop_ext("WIDE", pollTime="15000", initMode="1"))
    broker.settle()
    assert sorted(row.queue_id for command in staged for row in command.rows) == list(range(3 * MAX_ROWS + 1))
    assert max(len(command.rows) for command in staged) <= MAX_ROWS
    assert not client.has_answer(waiting)
    client.send_message("WIDE", b"a", 77)
    assert bodies(messages(client.answered(waiting), "WIDE")) == [b"a"]


def test_peeking_looks_at_all_of_many_queues(broker: ServedBroker, client: FakeClient) -> None:
    broker.memory.create_topic("WIDE", 3 * MAX_ROWS)
    client.send_message("WIDE", b"a", 2 * MAX_ROWS)
    ext = {"consumerGroup": "CG", "topic": "WIDE", "queueId": "-1", "maxMsgNums": "8"}
    for _ in range(3):
        assert bodies(messages(client.call(PEEK, ext), "WIDE")) == [b"a"]
