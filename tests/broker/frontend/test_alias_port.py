"""Alias port of a node: it refuses what would be counted twice or belongs to a queue's own broker, and nothing else."""

from __future__ import annotations

import pytest

from dledger_broker.frontend.alias_port import ANSWERS
from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.record import iter_records
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.features.assignments.assignment_calls import join, queues
from tests.broker.features.delay.test_recalls import DELAYED, pending, recall
from tests.broker.features.pulling.test_property_filters import check as check_filter
from tests.broker.features.transactions.test_half_requests import (
    COMMIT,
    ROLLBACK,
    bodies,
    end,
    founded,
    send_half,
    table,
)
from tests.broker.served_broker import LONG_SEND, FakeClient, MakeBroker, ServedBroker, pull_ext, send_ext

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


def test_each_own_answer_of_an_alias_port_is_listed_as_refused_or_empty() -> None:
    assert ANSWERS.keys() == REFUSED.keys() | EMPTY.keys()


@pytest.mark.parametrize("code", REFUSED, ids=int)
def test_an_alias_port_refuses_requests_for_a_queues_own_broker(broker: ServedBroker, code: RequestCode) -> None:
    ext = pull_ext("T1") if code != RequestCode.QUERY_MESSAGE else {"topic": "T1", "key": "k", "maxNum": "1"}
    answer = at_alias(broker, 1).call(code, ext)
    assert answer.code == REFUSED[code]
    assert "write alias" in (answer.remark or "")


@pytest.mark.parametrize("code", EMPTY, ids=int)
def test_alias_port_reports_no_counts_that_are_summed_over_brokers(broker: ServedBroker, code: RequestCode) -> None:
    broker.client().send_message("T1")
    answer = at_alias(broker, 1).call(code, {"topic": "T1", "consumerGroup": "CG", "group": "CG", "isOrder": "false"})
    assert answer.code == ResponseCode.SUCCESS
    assert decode_body(dict[str, object], answer.body) == EMPTY[code]


COUNTS = {
    "TOPIC_PUT_NUMS": "T1",
    "TOPIC_PUT_SIZE": "T1",
    "GROUP_GET_NUMS": "T1@CG",
    "GROUP_GET_SIZE": "T1@CG",
    "SNDBCK_PUT_NUMS": "T1@CG",
    "BROKER_PUT_NUMS": "DefaultCluster",
    "BROKER_GET_NUMS": "DefaultCluster",
}
"""Statistics by name, with the key to ask with. A node counts only what it has done itself, except for the first."""


@pytest.mark.parametrize("name", COUNTS)
def test_messages_of_a_topic_are_counted_at_only_one_broker_of_its_route(broker: ServedBroker, name: str) -> None:
    """mqadmin and dashboards add up the answers of all brokers: a count of one node is part of no other count."""
    broker.groups.ensure_group(SubscriptionGroupConfig("CG"), lambda error: None)
    broker.client().send_message("T1")
    broker.counters.count_delivery("CG", "T1", 1, 100)
    broker.counters.sent_back.count("CG", "T1", 1, 100)
    ext = {"statsName": name, "statsKey": COUNTS[name]}
    own = broker.client("client/own").call(RequestCode.VIEW_BROKER_STATS_DATA, ext)
    alias = at_alias(broker, 1).call(RequestCode.VIEW_BROKER_STATS_DATA, ext)
    assert own.code == ResponseCode.SUCCESS
    if name == "TOPIC_PUT_NUMS":
        assert alias.code == ResponseCode.SYSTEM_ERROR
        assert "ask the broker group" in (alias.remark or "")
    else:
        assert (alias.code, alias.body) == (own.code, own.body)


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": "A", "statsKey": "B"}),
        (RequestCode.VIEW_BROKER_STATS_DATA, {}),
        (RequestCode.GET_TOPIC_CONFIG, {"topic": "T1"}),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T1"}),
        (RequestCode.CHECK_CLIENT_CONFIG, {}),
        (RequestCode.QUERY_ASSIGNMENT, {}),
        (RequestCode.GET_MAX_OFFSET, {"topic": "T1", "queueId": "0"}),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "CG"}),
        *((RequestCode.SEND_MESSAGE_V2, broken) for broken in ({}, {"b": "T1"}, send_ext("%"))),
        (9_999, {}),
    ],
)
def test_other_requests_at_an_alias_port_are_answered_as_at_the_nodes_own_port(
    broker: ServedBroker, code: int, ext: dict[str, str]
) -> None:
    own, alias = broker.client("client/own").call(code, ext), at_alias(broker, 1).call(code, ext)
    assert (own.code, own.remark, own.body) == (alias.code, alias.remark, alias.body)


def test_questions_about_filters_and_assignments_are_answered_as_by_the_nodes_own_port(broker: ServedBroker) -> None:
    own, alias = broker.client("client/own"), at_alias(broker, 1)
    join(own, "a", "b")
    halves = [queues(alias, client_id) for client_id in ("a", "b")]
    assert sorted(halves[0] + halves[1]) == [0, 1, 2, 3]
    assert halves == [queues(own, client_id) for client_id in ("a", "b")]
    for expression, code in (("a > 1", ResponseCode.SUCCESS), ("a >", ResponseCode.SUBSCRIPTION_PARSE_FAILED)):
        assert check_filter(alias, expressionType="SQL92", subString=expression).code == code


@pytest.mark.parametrize("what", [COMMIT, ROLLBACK])
def test_a_transaction_that_an_alias_has_taken_ends_at_that_alias(make_broker: MakeBroker, what: int) -> None:
    """A stock producer ends a transaction at the broker that it sent the half to, and names that broker."""
    broker = founded(make_broker())
    alias = at_alias(broker, 1)
    sent = send_half(alias, queue_id=2)
    assert (sent.code, sent.ext["queueId"]) == (0, "1")
    assert bodies(broker, 1) == []
    assert end(alias, sent, what, bname="broker-a@n1").code == 0
    assert bodies(broker, 1) == ([b"half"] if what == COMMIT else [])
    assert not table(broker).open


def test_a_delayed_message_that_an_alias_has_taken_is_recalled_there(broker: ServedBroker) -> None:
    alias = at_alias(broker, 1)
    sent = alias.send_message("T1", b"later", i=DELAYED)
    assert sent.ext["queueId"] == "1"
    assert pending(broker) == 1
    assert recall(alias, sent.ext["recallHandle"]).code == 0
    assert pending(broker) == 0


@pytest.mark.parametrize("code", [10, 310, 320])
@pytest.mark.parametrize("serialize_type", [0, 1])
def test_a_send_to_an_alias_goes_to_the_queue_that_follows_from_the_alias_number(
    broker: ServedBroker, code: int, serialize_type: int
) -> None:
    """A client that sends again names a queue of the broker that failed before."""
    broker.client().send_message("T1", queue_id=1)
    body, ext = b"hello", send_ext("T1", 3)
    if code == RequestCode.SEND_BATCH_MESSAGE:
        body = (4 + 4 + 4 + 4 + 4 + 5 + 2).to_bytes(4, "big") + bytes(12) + (5).to_bytes(4, "big") + b"hello" + bytes(2)
    if code == RequestCode.SEND_MESSAGE:
        ext = {**LONG_SEND, "queueId": "3", "properties": ""}
    answer = at_alias(broker, 5).call(code, ext, body, serialize_type=serialize_type)
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (ResponseCode.SUCCESS, "1", "1")
    (_, stored) = iter_records(broker.client("client/reader").pull("T1", 1).body, verify_crc=True)
    assert (stored.body, stored.queue_id) == (b"hello", 1)


def test_sends_to_both_ports_in_one_turn_go_to_the_queues_of_their_ports(broker: ServedBroker) -> None:
    own, alias = broker.client("client/own"), at_alias(broker, 2)
    sent = [(client, client.send(310, send_ext("T1", 0), b"x")) for client in (own, alias, own, alias)]
    broker.settle()
    assert [client.answered(opaque).ext["queueId"] for client, opaque in sent] == ["0", "2", "0", "2"]


def test_a_send_to_an_alias_goes_to_a_writable_queue(broker: ServedBroker) -> None:
    broker.memory.machine.proposals.put_topic(TopicConfig("T1", 8, 2), lambda _: None)
    broker.settle()
    assert at_alias(broker, 3).send_message("T1", queue_id=7).ext["queueId"] == "1"
