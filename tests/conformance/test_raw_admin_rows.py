"""Bodies that operators' tools read: as Java's fastjson does where queues are keys, as strict JSON everywhere else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from admin_answers import asked, prepare, read
from raw_wire import ALL_WAYS, Wire, wire_for

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
"""Beginnings of lines of RocketMQ's answers that ours lack, and why."""
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
"""Those that only ours have: readers of JSON pass over names that they do not know."""
OLD_VERSION, NEW_VERSION = 275, 479
"""Of RocketMQ 4.3.2 and 5.3.3, as clients say them."""
KEYED: Final = frozenset({("brokerName", "broker-a"), ("queueId", 0)})


@pytest.fixture(params=ALL_WAYS)
def row(quick_group, request) -> Iterator[Wire]:
    yield from wire_for(quick_group, request.param)


def fields(row: Wire) -> dict[str, str]:
    """What any of these requests asks about."""
    named = {"topic": row.topic, "group": row.group, "consumerGroup": row.group, "producerGroup": "raw-producers"}
    return {**named, "timestamp": "-1", "isForce": "true"}


def test_answers_to_operators_have_what_those_of_rocketmq_have(quick_group: LocalCluster) -> None:
    """To record anew: RECORD_ADMIN_ANSWERS=HOST:PORT, a broker of a RocketMQ 5.3.3 that has just been started."""
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


def test_bodies_with_queues_as_keys_are_what_java_reads(row):
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


def test_the_reader_knows_what_is_no_json():
    queue = MessageQueue("broker-a", 0, "T")
    assert read(encode_fastjson({"table": {queue: {1: "a b"}}}).decode()) == {
        "table": {KEYED | {("topic", "T")}: {1: "a b"}}
    }
    with pytest.raises((AssertionError, IndexError)):
        read('{"table":{"a":?}}')
