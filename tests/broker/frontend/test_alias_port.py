"""The alias port of a node answers as the node does, but for what would count twice or belongs to a queue's broker."""

from __future__ import annotations

import pytest

from dledger_broker.frontend.alias_port import ANSWERS
from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.record import iter_records
from dledger_remoting.topics import TopicConfig
from tests.broker.served_broker import FakeClient, ServedBroker, pull_ext, send_ext

REFUSED = {
    RequestCode.PULL_MESSAGE: ResponseCode.TOPIC_NOT_EXIST,
    RequestCode.LITE_PULL_MESSAGE: ResponseCode.TOPIC_NOT_EXIST,
    RequestCode.QUERY_MESSAGE: ResponseCode.QUERY_NOT_FOUND,
}
EMPTY = {
    RequestCode.GET_TOPIC_STATS_INFO: {"offsetTable": {}, "topicPutTps": 0.0},
    RequestCode.GET_CONSUME_STATS: {"consumeTps": 0.0, "offsetTable": {}},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {"offsetTable": {}},
    RequestCode.QUERY_CONSUME_TIME_SPAN: {"consumeTimeSpanSet": []},
    RequestCode.GET_BROKER_CONSUME_STATS: {
        "brokerAddr": "",
        "consumeStatsList": [],
        "totalDiff": 0,
        "totalInflightDiff": 0,
    },
}


def at_alias(broker: ServedBroker, number: int, key: str = "client/alias") -> FakeClient:
    client = broker.client(key)
    client.alias = number
    return client


def test_what_an_alias_port_answers_by_itself_is_in_one_of_the_tables() -> None:
    assert ANSWERS.keys() == REFUSED.keys() | EMPTY.keys()


@pytest.mark.parametrize("code", REFUSED, ids=int)
def test_it_refuses_what_belongs_to_a_queues_own_broker(broker: ServedBroker, code: RequestCode) -> None:
    broker.memory.create_topic("T1")
    ext = pull_ext("T1") if code != RequestCode.QUERY_MESSAGE else {"topic": "T1", "key": "k", "maxNum": "1"}
    answer = at_alias(broker, 1).call(code, ext)
    assert answer.code == REFUSED[code]
    assert "write alias" in (answer.remark or "")


@pytest.mark.parametrize("code", EMPTY, ids=int)
def test_it_has_nothing_of_what_is_added_up_over_a_routes_brokers(broker: ServedBroker, code: RequestCode) -> None:
    broker.memory.create_topic("T1")
    broker.client().send_message("T1")
    answer = at_alias(broker, 1).call(code, {"topic": "T1", "consumerGroup": "CG", "group": "CG", "isOrder": "false"})
    assert answer.code == ResponseCode.SUCCESS
    assert decode_body(dict[str, object], answer.body) == EMPTY[code]


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.GET_TOPIC_CONFIG, {"topic": "T1"}),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T1"}),
        (RequestCode.CHECK_CLIENT_CONFIG, {}),
        (RequestCode.QUERY_ASSIGNMENT, {}),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T1", "queueId": "0"}),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"}),
        (9_999, {}),
    ],
)
def test_everything_else_is_answered_as_by_the_nodes_own_port(
    broker: ServedBroker, code: int, ext: dict[str, str]
) -> None:
    broker.memory.create_topic("T1")
    own, alias = broker.client("client/own").call(code, ext), at_alias(broker, 1).call(code, ext)
    assert (own.code, own.remark, own.body) == (alias.code, alias.remark, alias.body)


@pytest.mark.parametrize("code", [10, 310, 320])
@pytest.mark.parametrize("serialize_type", [0, 1])
def test_what_it_takes_goes_to_the_queue_that_follows_from_its_number(
    broker: ServedBroker, code: int, serialize_type: int
) -> None:
    """Whichever queue the client means: a client that sends again names that of the broker which failed before."""
    broker.memory.create_topic("T1", 4)
    broker.client().send_message("T1", queue_id=1)
    client = at_alias(broker, 5)
    body = b"hello"
    if code == RequestCode.SEND_BATCH_MESSAGE:
        body = (4 + 4 + 4 + 4 + 4 + 5 + 2).to_bytes(4, "big") + bytes(12) + (5).to_bytes(4, "big") + b"hello" + bytes(2)
    ext = send_ext("T1", 3)
    if code == RequestCode.SEND_MESSAGE:
        names = ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag")
        ext = dict(zip((*names, "bornTimestamp", "flag", "properties"), ext.values(), strict=True))
    answer = client.call(code, ext, body, serialize_type=serialize_type)
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "1", "1")
    (_, stored) = iter_records(broker.client("client/reader").pull("T1", 1).body, verify_crc=True)
    assert (stored.body, stored.queue_id) == (b"hello", 1)


def test_sends_to_both_ports_in_one_turn_are_all_taken_where_they_came(broker: ServedBroker) -> None:
    broker.memory.create_topic("T1", 4)
    own, alias = broker.client("client/own"), at_alias(broker, 2)
    sent = [(client, client.send(310, send_ext("T1", 0), b"x")) for client in (own, alias, own, alias)]
    broker.settle()
    assert [client.answered(opaque).ext["queueId"] for client, opaque in sent] == ["0", "2", "0", "2"]


def test_the_queues_are_those_that_can_be_written(broker: ServedBroker) -> None:
    broker.memory.machine.proposals.put_topic(TopicConfig("T1", 8, 2), lambda _: None)
    broker.settle()
    assert at_alias(broker, 3).send_message("T1", queue_id=7).ext["queueId"] == "1"


def test_a_broken_send_is_refused_as_everywhere(broker: ServedBroker) -> None:
    own, alias = broker.client("client/own"), at_alias(broker, 1)
    for ext in ({}, {"b": "T1"}, send_ext("%")):
        mine, its = own.call(310, ext), alias.call(310, ext)
        assert (mine.code, mine.remark) == (its.code, its.remark)
