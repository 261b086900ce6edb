"""Bytes on the wire pass the rows about POP and assignments.

POP covers pops, acknowledgements, changes of the invisible time, redelivery and order. Its requests are in JSON: a
binary header has 16 bits for a code, and POP's codes are above 200000. Assignments run in both serializers.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

import pytest
from raw_wire import ALL_WAYS, JSON_WAYS, UNDISTURBED, WAIT_SECONDS, Wire, wires

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.pop import CheckPoint, parse_check_point, pop_retry_topic
from dledger_remoting.pop_bodies import BatchAck, encode_batch_ack
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records

HIDDEN_MS = 60_000


class Popped(NamedTuple):
    """Message as a consumer gets it, with the data for its acknowledgement."""

    record: MessageRecord
    point: CheckPoint

    @property
    def body(self) -> str:
        return self.record.body.decode()


row = wires(JSON_WAYS)
wire = wires(UNDISTURBED)


def asked(row: Wire, **fields: object) -> dict[str, str]:
    ext = {"consumerGroup": row.group, "topic": row.topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": HIDDEN_MS}
    ext |= {"pollTime": 0, "bornTime": 0, "initMode": 0, "order": "false", **fields}
    return {name: str(value) for name, value in ext.items()}


def pop(row: Wire, *, wait: bool = True, **fields: object) -> list[Popped]:
    """Pop messages, and wait for some. Without `wait`, return an empty list if there are none."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        answer = row.answer(row.post(RequestCode.POP_MESSAGE, asked(row, pollTime=1000 if wait else 0, **fields)))
        if answer.code == ResponseCode.SUCCESS:
            return messages(answer)
        assert answer.code == ResponseCode.POLLING_TIMEOUT, (answer.code, answer.remark)
        if not wait:
            return []
        assert time.monotonic() < deadline, f"nothing came: {answer.remark}"


def messages(answer: RemotingCommand) -> list[Popped]:
    """Return the messages of an answer, with their check points as RocketMQ's client builds them."""
    starts = {}
    for start in filter(None, answer.ext["startOffsetInfo"].split(";")):
        retry, queue_id, offset = start.split(" ")
        starts[retry, int(queue_id)] = offset
    found = []
    for record in iter_records(answer.body):
        text = parse_properties(record.properties).get("POP_CK")
        if text is None:
            start, times = starts["0", record.queue_id], (answer.ext["popTime"], answer.ext["invisibleTime"])
            text = " ".join((start, *times, answer.ext["reviveQid"], "0", "broker-a", str(record.queue_id)))
            text += f" {record.queue_offset}"
        found.append(Popped(record, parse_check_point(text)))
    return found


def place(row: Wire, one: Popped) -> dict[str, str]:
    point = one.point
    topic = pop_retry_topic(row.group, row.topic, point.retry)
    ext = {"consumerGroup": row.group, "topic": topic, "queueId": str(point.queue_id), "extraInfo": point.text}
    return ext | {"offset": str(point.queue_offset)}


def ack(row: Wire, one: Popped, expected: int = ResponseCode.SUCCESS) -> None:
    row.ask(RequestCode.ACK_MESSAGE, place(row, one), expected=expected)


def send(row: Wire, *bodies: str) -> None:
    for body in bodies:
        row.send(body)


def test_a_message_that_is_acknowledged_never_comes_again(row):
    send(row, "first", "second")
    first, second = pop(row)
    assert (first.body, second.body) == ("first", "second")
    ack(row, first)
    row.kill()
    assert pop(row, wait=False) == []
    ack(row, first)
    ack(row, second)
    ack(row, second, expected=ResponseCode.NO_MESSAGE)  # the whole delivery is over
    assert pop(row, wait=False) == []


def test_an_unacknowledged_pop_comes_again_and_voids_the_first_check_point(row):
    send(row, "again")
    (first,) = pop(row, invisibleTime=1000)
    row.kill()
    (second,) = pop(row)
    assert (second.body, second.record.topic, second.record.reconsume_times) == ("again", row.topic, 1)
    properties = parse_properties(second.record.properties)
    assert properties["RETRY_TOPIC"] == row.topic
    assert properties["1ST_POP_TIME"] == str(first.point.pop_time_ms)
    assert second.point.retry != first.point.retry
    ack(row, first, expected=ResponseCode.NO_MESSAGE)
    ack(row, second)


def test_changing_the_invisible_time_replaces_the_check_point(row):
    send(row, "slow")
    (first,) = pop(row, invisibleTime=2000)
    answer = row.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {**place(row, first), "invisibleTime": str(HIDDEN_MS)})
    row.kill()
    ack(row, first, expected=ResponseCode.NO_MESSAGE)
    assert pop(row, wait=False) == []
    ext, point = answer.ext, first.point
    text = f"{point.queue_offset} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 broker-a 0 0"
    ack(row, first._replace(point=parse_check_point(text)))


def test_many_are_acknowledged_at_once(row):
    send(row, *"abcd")
    popped = pop(row)
    point = popped[0].point
    batch = BatchAck(row.group, row.topic, point.retry, point.start_offset, 0, point.pop_time_ms, "Bw==")
    body = encode_batch_ack("broker-a", [batch])
    row.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    row.kill()
    row.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)
    ack(row, popped[3])
    assert pop(row, wait=False) == []


def test_an_ordered_pop_gives_the_next_messages_after_the_first_are_acknowledged(row):
    send(row, *"abc")
    first, second = pop(row, order="true", maxMsgNums=2, attemptId="one")
    assert pop(row, order="true", attemptId="two", wait=False) == []
    row.kill()
    again = pop(row, order="true", maxMsgNums=2, attemptId="one", wait=False)
    assert [one.body for one in again] == [first.body, second.body] == ["a", "b"]
    for one in again:
        ack(row, one)
    (third,) = pop(row, order="true", attemptId="three")
    assert third.body == "c"
    ack(row, third)


def test_notification_peek_and_polling_info_report_available_messages(row):
    question = {"consumerGroup": row.group, "topic": row.topic, "queueId": "-1", "pollTime": "0", "bornTime": "0"}
    assert row.ask(RequestCode.NOTIFICATION, question).ext["hasMsg"] == "false"
    send(row, "there")
    row.kill()
    assert row.ask(RequestCode.NOTIFICATION, question).ext["hasMsg"] == "true"
    peeked = row.ask(RequestCode.PEEK_MESSAGE, {**question, "maxMsgNums": "1"})
    assert [record.body for record in iter_records(peeked.body)] == [b"there"]
    assert row.ask(RequestCode.POLLING_INFO, question).ext["pollingNum"] == "0"
    (one,) = pop(row)
    ack(row, one)
    assert row.ask(RequestCode.NOTIFICATION, question).ext["hasMsg"] == "false"
    row.ask(RequestCode.PEEK_MESSAGE, {**question, "maxMsgNums": "1"}, expected=ResponseCode.PULL_NOT_FOUND)
    row.ask(RequestCode.POP_ROLLBACK, {})


@pytest.mark.parametrize("row", ALL_WAYS, indirect=True)
def test_a_member_has_queues_assigned_in_the_mode_that_was_set(row):
    row.heartbeat()
    question = {"topic": row.topic, "consumerGroup": row.group, "clientId": "raw@1", "strategyName": "AVG"}
    question |= {"messageModel": "CLUSTERING"}
    mode = {"topic": row.topic, "consumerGroup": row.group, "mode": "POP", "popShareQueueNum": 0}

    def assigned() -> list[tuple[int, str]]:
        answer = row.ask(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(question).encode())
        rows = json.loads(answer.body)["messageQueueAssignments"]
        return [(one["messageQueue"]["queueId"], one["mode"]) for one in rows]

    assert assigned() == [(0, "PULL")]
    row.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())
    row.kill()
    row.heartbeat()
    assert assigned() == [(-1, "POP")]
    modes = json.loads(row.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}).body)["messageRequestModeMap"]
    assert modes[row.topic][row.group] == mode


def test_a_mode_is_set_in_both_serializers_and_not_for_a_retry_topic(wire):
    mode = {"topic": wire.topic, "consumerGroup": wire.group, "mode": "POP", "popShareQueueNum": 1}
    wire.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(mode).encode())
    retry = {**mode, "topic": f"%RETRY%{wire.group}"}
    refused = {"expected": ResponseCode.NO_PERMISSION, "text": "retry topic"}
    wire.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(retry).encode(), **refused)


def test_invalid_pops_are_refused_with_their_code(row):
    refused = [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 99}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "ABSENT"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"expType": "SQL92", "exp": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"expType": "XPATH", "exp": "a"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ]
    row.kill()
    for fields, code in refused:
        row.ask(RequestCode.POP_MESSAGE, asked(row, **fields), expected=code)
