"""Bodies for operators' tools are in the format of Java's fastjson if queues are keys, and strict JSON otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from admin_answers import asked, prepare, read
from raw_wire import ALL_WAYS, Wire, wires

from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode
from dledger_remoting.fastjson import encode_fastjson
from dledger_remoting.topics import MessageQueue
from tests.integration.bare_client import BareClient

STRICT: Final[tuple[RequestCode, ...]] = (
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_CONSUMER_CONNECTION_LIST,
    RequestCode.GET_PRODUCER_CONNECTION_LIST,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_TOPICS_OF_GROUP,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
)
QUEUES_AS_KEYS: Final[dict[RequestCode, Callable[[object], object]]] = {
    RequestCode.GET_TOPIC_STATS_INFO: lambda body: body["offsetTable"],
    RequestCode.GET_CONSUME_STATS: lambda body: body["offsetTable"],
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: lambda body: body["offsetTable"],
}
ANSWERS: Final = Path(__file__).parent / "admin_answers_5.3.3.txt"
RECORDED_FROM: Final = os.environ.get("RECORD_ADMIN_ANSWERS")
NOT_TOLD: Final = {
    "201 .subscriptionGroupTable{name}.groupRetryPolicy.type text": "left out where it is RocketMQ's default",
    "352 .groupRetryPolicy.type text": "the same",
    "21 .mappingDataVersion": "of static topics, which there are none of",
    "21 .topicQueueMapping": "the same",
    "303 .consumeTimeSpanSet[].consumeTimeStampStr text": "times as texts are made by who reads the numbers",
    "303 .consumeTimeSpanSet[].maxTimeStampStr text": "the same",
    "303 .consumeTimeSpanSet[].minTimeStampStr text": "the same",
    "352 nobody ": "a question makes no group",
}
"""Beginnings of lines of RocketMQ's answers that ours lack, with the reason."""
ONLY_TOLD: Final = {
    "203 .connectionSet[].subscriptions": "which of several members subscribes to what",
    "208 .offsetTable{queue}.committed flag": "whether an offset was committed",
    "208 .offsetTable{queue}.minOffset number": "where the queue begins",
    "208 all topics .offsetTable{queue}.committed flag": "the same",
    "208 all topics .offsetTable{queue}.minOffset number": "the same",
    "317 .consumeStatsList[]{name}[].offsetTable{queue}.committed flag": "the same",
    "317 .consumeStatsList[]{name}[].offsetTable{queue}.minOffset number": "the same",
    "352 nobody answered 26": "a question makes no group",
}
"""Beginnings of lines that only our answers have. Readers of JSON ignore names that they do not know."""
OLD_VERSION, NEW_VERSION = 275, 479
"""Versions 4.3.2 and 5.3.3 of RocketMQ, as numbers in requests."""
KEYED: Final = frozenset({("brokerName", "broker-a"), ("queueId", 0)})


row = wires(ALL_WAYS)


def fields(row: Wire) -> dict[str, str]:
    """Return the ext fields that any of these requests needs."""
    named = {"topic": row.topic, "group": row.group, "consumerGroup": row.group, "producerGroup": "raw-producers"}
    return {**named, "timestamp": "-1", "isForce": "true"}


def test_answers_to_operators_have_the_recorded_fields_of_rocketmq(quick_group: LocalCluster) -> None:
    """To record again: RECORD_ADMIN_ANSWERS=HOST:PORT, the address of a freshly started RocketMQ 5.3.3 broker."""
    leader = quick_group.client_address(quick_group.leader())
    with BareClient(RECORDED_FROM or leader) as client:
        prepare(client)
        lines = asked(client)
    if RECORDED_FROM:
        ANSWERS.write_text("".join(f"{line}\n" for line in lines))
    recorded = ANSWERS.read_text().splitlines()
    assert [line for line in recorded if line not in lines and not line.startswith(tuple(NOT_TOLD))] == []
    assert [line for line in lines if line not in recorded and not line.startswith(tuple(ONLY_TOLD))] == []


def test_bodies_without_queues_as_keys_are_strict_json(row):
    row.heartbeat()
    row.send("message")
    for killed in (False, True):
        if killed:
            row.kill()
            row.heartbeat()
        for code in STRICT:
            answer = row.ask(code, fields(row))
            assert isinstance(json.loads(answer.body), dict), code.name


def test_bodies_with_queues_as_keys_have_the_form_that_java_reads(row):
    row.heartbeat()
    row.send("message")
    commit = {"consumerGroup": row.group, "topic": row.topic, "queueId": "0", "commitOffset": "1"}
    row.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    for killed in (False, True):
        if killed:
            row.kill()
            row.heartbeat()
        for code, table in QUEUES_AS_KEYS.items():
            body = row.ask(code, fields(row)).body.decode()
            with pytest.raises(json.JSONDecodeError):
                json.loads(body)
            assert KEYED | {("topic", row.topic)} in table(read(body)), code.name


@pytest.mark.parametrize(("version", "kind"), [(OLD_VERSION, int), (NEW_VERSION, str)], ids=["4.3", "5.3"])
def test_broker_ids_are_numbers_to_old_clients_and_texts_to_new_ones(quick_group, version, kind):
    with BareClient(quick_group.namesrv) as names:
        table = read(names.ask(RequestCode.GET_BROKER_CLUSTER_INFO, version=version).body.decode())
    keys = table["brokerAddrTable"]["broker-a"]["brokerAddrs"].keys()
    assert {type(key) for key in keys} == {kind}


def test_the_fastjson_reader_accepts_object_keys_and_refuses_garbage():
    queue = MessageQueue("broker-a", 0, "T")
    assert read(encode_fastjson({"table": {queue: {1: "a b"}}}).decode()) == {
        "table": {KEYED | {("topic", "T")}: {1: "a b"}}
    }
    with pytest.raises((AssertionError, IndexError)):
        read('{"table":{"a":?}}')
