"""Pops (200050): which client gets which messages, what waits, and what is refused."""

import pytest
from served_broker import MakeBroker, ServedBroker

from dledger_broker.features.pop.changes import MAX_ROWS
from dledger_broker.features.pop.commands import Pop
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.pop import Retry
from dledger_remoting.properties import parse_properties
from tests.broker.features.pop.pop_calls import FOUND, HIDDEN_S, NOTHING, QUEUE_0, Popper, bodies, messages, numbers

NOTICE = {**QUEUE_0, "queueId": "-1", "pollTime": "15000", "bornTime": "0"}


def test_a_pop_of_any_queue_takes_from_all_queues_until_full(client: Popper) -> None:
    for queue_id in range(4):
        client.store(*numbers(3, 3 * queue_id), queue_id=queue_id)
    first, second = client.pop_bodies(maxMsgNums="8"), client.pop_bodies()
    assert (len(first), len(second)) == (8, 4)
    assert {*first, *second} == {*numbers(12)}
    assert [client.queue(queue_id).open_count for queue_id in range(4)] == [3] * 4


def test_a_pop_of_one_queue_takes_from_no_other_queue_and_groups_pop_independently(client: Popper) -> None:
    client.store(b"a")
    client.store(b"b", queue_id=1)
    assert [client.pop_bodies(queueId=queue_id) for queue_id in "12"] == [[b"b"], []]
    assert [client.pop_bodies(queueId="1", consumerGroup="OTHER") for _ in range(2)] == [[b"b"], []]


def test_the_first_pop_begins_at_a_commit_that_is_still_in_flight(client: Popper) -> None:
    client.store(*numbers(3))
    client.send(15, {**QUEUE_0, "commitOffset": "2"})
    assert client.popped(client.begin_pop(pollTime="0")) == [b"2"]


def test_a_group_that_begins_at_the_end_gets_messages_sent_after_its_first_pop(client: Popper) -> None:
    client.store(*numbers(3))
    client.broker.memory.queue("T1").first_offset = 1  # otherwise the topic is so young that everything is still there
    assert client.pop(initMode="1") == []
    client.store(b"3")
    assert client.pop_bodies(initMode="1") == [b"3"]


def test_a_pop_skips_messages_that_its_filter_rejects(client: Popper) -> None:
    for number, tag in enumerate(("a", "b", "a", "b", "b")):
        client.send_message("T1", b"%d" % number, properties=f"TAGS\x01{tag}\x02")
    popped = client.pop(exp="a", expType="TAG")
    assert bodies(popped) == [b"0", b"2"]
    assert client.pop(exp="a", expType="TAG") == []
    assert client.queue().next_offset == 5
    assert [client.ack(message) for message in popped] == [FOUND, FOUND]
    assert client.committed() == 5


def test_a_filter_in_sql92_looks_at_properties(client: Popper) -> None:
    for number in range(6):
        client.send_message("T1", b"%d" % number, properties=f"n\x01{number}\x02")
    assert client.pop_bodies(exp="n > 1 AND n <> 4", expType="SQL92") == [b"2", b"3", b"5"]
    for fault in ({"exp": "n >", "expType": "SQL92"}, {"exp": "n", "expType": "UNKNOWN"}):
        assert client.ask_pop(**fault).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_pop_waits_for_messages_until_its_poll_time_is_over(client: Popper) -> None:
    waiting = client.begin_pop()
    client.broker.advance(14.9)
    assert not client.has_answer(waiting)
    client.broker.advance(0.2)
    answer = client.answered(waiting)
    assert answer.code == NOTHING
    assert answer.ext.keys() >= {"popTime", "invisibleTime", "reviveQid", "restNum"}
    assert (client.held, client.in_flight) == (0, 0)


def test_a_new_message_goes_to_exactly_one_waiting_pop(broker: ServedBroker, client: Popper) -> None:
    others = [Popper(broker, f"client/{number}") for number in range(3)]
    waiting = [(other, other.begin_pop()) for other in others]
    assert client.call(RequestCode.POLLING_INFO, {**QUEUE_0, "queueId": "-1"}).ext["pollingNum"] == "3"
    client.store(b"a", queue_id=2)
    assert sorted(other.has_answer(opaque) for other, opaque in waiting) == [False, False, True]
    client.store(b"b", b"c")
    assert sorted(body for other, opaque in waiting for body in other.popped(opaque)) == [b"a", b"b", b"c"]


def test_waiting_pops_are_answered_when_their_topic_is_deleted_and_when_the_leader_is_deposed(client: Popper) -> None:
    waiting = client.begin_pop()
    client.broker.memory.delete_topic("T1")
    assert client.answered(waiting).code == ResponseCode.TOPIC_NOT_EXIST
    waiting = client.begin_pop("T2")
    client.broker.memory.node.step_down()
    client.broker.group.on_leadership(client.broker.memory.machine.leadership)
    client.broker.settle()
    assert client.answered(waiting).code == NOTHING


def test_pops_and_notifications_are_refused_while_their_group_is_paused(broker: ServedBroker, client: Popper) -> None:
    broker.put_group("OTHER")
    waiting = [client.begin_pop(), client.send(RequestCode.NOTIFICATION, NOTICE)]
    other = client.begin_pop(consumerGroup="OTHER")
    assert client.held == 3
    broker.put_group(consume_enable=False)
    for answer in (*map(client.answered, waiting), client.ask_pop()):
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "consumer group CG may not consume" in (answer.remark or "")
    assert (client.held, client.in_flight, client.has_answer(other)) == (1, 0, False)
    broker.put_group()
    client.store(b"a")
    assert client.popped(other) == client.pop_bodies() == [b"a"]


def test_more_than_max_pop_in_flight_are_answered_with_back_pressure(make_broker: MakeBroker) -> None:
    client = Popper.of(make_broker(max_pop_in_flight=40))
    client.store(*numbers(50))
    popped = client.pop() + client.pop()
    assert len(popped) == 40
    answer = client.ask_pop(pollTime="15000")
    assert (answer.code, client.broker.counters.max_pop_in_flight) == (ResponseCode.POLLING_FULL, 1)
    assert "max_pop_in_flight" in (answer.remark or "")
    assert client.ack(popped[0]) == FOUND
    assert len(client.pop()) == 1


@pytest.mark.parametrize(
    ("code", "name", "text"),
    [
        (ResponseCode.INVALID_PARAMETER, "maxMsgNums", "0"),
        (ResponseCode.INVALID_PARAMETER, "invisibleTime", "-1"),
        (ResponseCode.INVALID_PARAMETER, "attemptId", "x" * 129),
        (ResponseCode.INVALID_PARAMETER, "consumerGroup", "no/group"),
        (ResponseCode.NO_PERMISSION, "topic", "RMQ_SYS_TRANS_HALF_TOPIC"),
    ],
)
def test_an_invalid_pop_is_refused(client: Popper, code: int, name: str, text: str) -> None:
    assert client.ask_pop(**{name: text}).code == code


def test_unacknowledged_messages_are_redelivered_after_their_invisible_time(client: Popper) -> None:
    client.store(b"a", b"b")
    first = client.pop()
    assert client.ack(first[0]) == FOUND
    client.wait(HIDDEN_S - 1)
    assert client.pop() == []
    client.wait(2)
    (again,) = client.pop()
    assert (again.body, again.topic, again.reconsume_times) == (b"b", "T1", 1)
    assert (again.point.retry, again.real_topic) == (Retry.V1, "%RETRY%CG_T1")
    assert client.ack(first[1]) == ResponseCode.NO_MESSAGE
    assert client.ack(again) == FOUND
    assert (client.committed(), client.committed(again.real_topic)) == (2, 1)
    client.wait(3 * HIDDEN_S)
    assert client.pop() == []


def test_the_second_form_of_retry_topics_has_its_own_flag(make_broker: MakeBroker) -> None:
    client = Popper.of(make_broker(pop_retry_topic_v2=True))
    client.store(b"a")
    client.pop()
    client.wait()
    (again,) = client.pop()
    assert (again.point.retry, again.real_topic) == (Retry.V2, "%RETRY%CG+T1")
    assert client.ack(again) == FOUND


def test_a_waiting_pop_gets_redelivered_messages(client: Popper) -> None:
    client.store(b"a")
    client.pop()
    client.broker.advance(30)
    waiting = client.begin_pop(pollTime="60000")
    client.wait(HIDDEN_S - 30.5)
    assert not client.has_answer(waiting)
    client.wait(1)
    assert client.popped(waiting) == [b"a"]


def test_a_popped_message_becomes_a_dead_letter_after_its_last_retry(client: Popper) -> None:
    client.broker.put_group(retry_max_times=2)
    client.store(b"a")
    seen = []
    for _ in range(4):
        seen += [message.reconsume_times for message in client.pop()]
        client.wait()
    assert seen == [0, 1, 2]
    (letter,) = client.dead_letters()
    assert (letter.body, parse_properties(letter.properties)["RETRY_TOPIC"]) == (b"a", "T1")
    assert not client.table.has_deliveries


def test_a_notification_request_waits_until_there_is_a_message_to_pop(client: Popper) -> None:
    waiting = client.send(RequestCode.NOTIFICATION, NOTICE)
    client.broker.settle()
    assert not client.has_answer(waiting)
    client.store(b"a")
    assert client.answered(waiting).ext["hasMsg"] == "true"
    assert client.call(RequestCode.NOTIFICATION, NOTICE).ext["hasMsg"] == "true"
    client.pop()
    late = client.send(RequestCode.NOTIFICATION, NOTICE)
    client.broker.advance(15.1)
    assert client.answered(late).ext["hasMsg"] == "false"


def test_a_first_pop_of_very_many_queues_finds_a_message_in_the_last_queue(client: Popper) -> None:
    """One row for each of the empty queues would be more than a segment holds."""
    wide = "W" * 127
    client.broker.memory.create_topic(wide, 10_000)
    client.store(b"a", topic=wide, queue_id=9_999)
    assert client.pop_bodies(wide) == [b"a"]


def test_a_first_pop_of_many_queues_begins_in_every_queue(client: Popper) -> None:
    client.broker.memory.create_topic("WIDE", 3 * MAX_ROWS + 1)
    commands = client.broker.keep_commands()
    waiting = client.begin_pop("WIDE", initMode="1")
    rows = [command.rows for command in commands if isinstance(command, Pop)]
    assert sorted(row.queue_id for some in rows for row in some) == list(range(3 * MAX_ROWS + 1))
    assert max(map(len, rows)) <= MAX_ROWS
    assert not client.has_answer(waiting)
    client.store(b"a", topic="WIDE", queue_id=77)
    assert client.popped(waiting, "WIDE") == [b"a"]


def test_peeking_takes_nothing_and_looks_at_all_of_many_queues(client: Popper) -> None:
    client.broker.memory.create_topic("WIDE", 3 * MAX_ROWS)
    for topic, queue_id, asked in (("T1", 0, "0"), ("WIDE", 2 * MAX_ROWS, "-1")):
        ext = {"consumerGroup": "CG", "topic": topic, "queueId": asked, "maxMsgNums": "8"}
        client.store(b"a", topic=topic, queue_id=queue_id)
        for _ in range(3):
            assert bodies(messages(client.call(RequestCode.PEEK_MESSAGE, ext), topic)) == [b"a"]
    assert client.pop_bodies() == [b"a"]
    assert client.call(RequestCode.PEEK_MESSAGE, {**QUEUE_0, "maxMsgNums": "8"}).code == ResponseCode.PULL_NOT_FOUND
