"""Answers of a broker about a consumer group: its members, how far they are, and who reads its queues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_broker import CLIENT_HOST, FakeClient, MakeBroker, ServedBroker, json_body, pull_ext

from dledger_broker.addresses import Address
from dledger_broker.clients import readers
from dledger_broker.clients.gossip import COMPLETE_S
from dledger_broker.clients.readers import KEEP_S, Readers
from dledger_broker.clients.tables import ClientChannel
from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.consumers import decode_consume_stats
from dledger_remoting.fastjson import to_standard_json
from dledger_remoting.frame import Frame
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.hosts import HostAddress
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig

GROUP = {"consumerGroup": "CG"}


def join(client: FakeClient, client_id: str, *subscriptions: SubscriptionData, language: int = 0) -> None:
    """Have a client heartbeat as a member of CG."""
    heartbeat = HeartbeatData(
        client_id, consumer_data_set=[ConsumerData("CG", subscription_data_set=list(subscriptions))]
    )
    client.broker.service.gossip.local.heartbeat(client, heartbeat, language, 479, client.broker.memory.env.now())


def commit(client: FakeClient, topic: str, queue_id: int, offset: int) -> None:
    """Store an offset of CG."""
    ext = {**GROUP, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    opaque = client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    client.broker.advance(1)
    assert client.answered(opaque).code == ResponseCode.SUCCESS


@pytest.fixture
def grouped(broker: ServedBroker) -> ServedBroker:
    """A broker with topics T1 and T2 and the consumer group CG."""
    broker.memory.create_topic("T2")
    broker.groups.ensure_group(SubscriptionGroupConfig("CG"), lambda error: None)
    broker.settle()
    return broker


def test_members_are_told_with_their_addresses_and_what_each_subscribes_to(broker: ServedBroker) -> None:
    first, second = broker.client(), broker.client("client/2")
    second.address = HostAddress("10.0.0.10", 5)
    join(first, "b", SubscriptionData("T1", "old || older", sub_version=1))
    join(second, "a", SubscriptionData("T1", "new", sub_version=2), language=LanguageCode.GO)
    body = json_body(first.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP))
    assert body["connectionSet"] == [
        {
            "clientId": "a",
            "clientAddr": "10.0.0.10:5",
            "language": "GO",
            "version": 479,
            "subscriptions": {"T1": "new"},
        },
        {
            "clientId": "b",
            "clientAddr": str(CLIENT_HOST),
            "language": "JAVA",
            "version": 479,
            "subscriptions": {"T1": "old || older"},
        },
    ]
    assert body["subscriptionTable"]["T1"]["subString"] == "new"
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"


def test_a_group_without_members_is_not_online(broker: ServedBroker) -> None:
    client = broker.client()
    join(client, "a")
    broker.service.gossip.local.unregister("a", None, "CG")
    answer = client.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP)
    assert (answer.code, answer.remark) == (ResponseCode.CONSUMER_NOT_ONLINE, "the consumer group[CG] not online")


def test_members_are_not_told_before_the_other_nodes_have_named_theirs(make_broker: MakeBroker) -> None:
    broker = make_broker(peers={"n1": Address("127.0.0.1", 1)}, secret_file=Path("unused"))
    client = broker.client()
    opaque = client.send(RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP)
    broker.settle()
    assert not client.has_answer(opaque)
    broker.advance(COMPLETE_S + 1)
    assert client.answered(opaque).code == ResponseCode.CONSUMER_NOT_ONLINE


def test_progress_is_told_of_every_topic_in_which_the_group_has_offsets(grouped: ServedBroker) -> None:
    client = grouped.client()
    for body in (b"1", b"2", b"3"):
        client.send_message("T1", body, queue_id=1)
    commit(client, "T1", 1, 2)
    answer = client.call_from_disk(RequestCode.GET_CONSUME_STATS, GROUP)
    assert b'"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:{"brokerOffset":0' in answer.body
    progress = decode_consume_stats(answer.body)
    assert sorted({queue.topic for queue in progress}) == ["T1"]
    read, unread = (progress[MessageQueue("broker-a", queue_id, "T1")] for queue_id in (1, 0))
    assert (read.broker_offset, read.consumer_offset, read.committed) == (3, 2, True)
    assert (unread.broker_offset, unread.consumer_offset, unread.committed) == (0, 0, False)


def test_progress_of_members_is_that_of_what_they_subscribe_to(grouped: ServedBroker) -> None:
    """As RocketMQ has it: what was given up would be behind for ever."""
    client = grouped.client()
    commit(client, "T1", 0, 0)
    join(client, "a", SubscriptionData("T2"))
    progress = decode_consume_stats(client.call_from_disk(RequestCode.GET_CONSUME_STATS, GROUP).body)
    assert {queue.topic for queue in progress} == {"T2", "%RETRY%CG"}
    asked = decode_consume_stats(client.call_from_disk(RequestCode.GET_CONSUME_STATS, {**GROUP, "topic": "T1"}).body)
    assert asked == {}


def topics_of_all_groups(client: FakeClient) -> dict[str, list[str]]:
    """What 317 says: the topics of each group."""
    body = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
    groups = json.loads(to_standard_json(body))["consumeStatsList"]
    return {group: [topic_of(one) for one in progress] for each in groups for group, progress in each.items()}


def topic_of(progress: dict[str, Any]) -> str:
    """Keys of standard JSON are texts, in which RocketMQ's objects are JSON."""
    (topic,) = {json.loads(queue)["topic"] for queue in progress["offsetTable"]}
    return str(topic)


def test_progress_of_all_groups_leaves_out_what_members_have_given_up(grouped: ServedBroker) -> None:
    """As RocketMQ has it: a dashboard's sum of what is behind would grow for ever."""
    client = grouped.client()
    retries = ["%RETRY%CG", "%RETRY%CG+T2", "%RETRY%CG_T2"]
    for topic in ("%RETRY%CG+T1", *retries):
        grouped.memory.create_topic(topic)
    for topic in ("T1", "T2", "%RETRY%CG+T1", *retries):
        commit(client, topic, 0, 0)
    assert topics_of_all_groups(client) == {"CG": ["%RETRY%CG", "%RETRY%CG+T1", *retries[1:], "T1", "T2"]}
    join(client, "a", SubscriptionData("T2"))
    assert topics_of_all_groups(client) == {"CG": [*retries, "T2"]}
    progress = decode_consume_stats(client.call_from_disk(RequestCode.GET_CONSUME_STATS, GROUP).body)
    assert {queue.topic for queue in progress} == {"T2", *retries}
    grouped.service.gossip.local.unregister("a", None, "CG")
    assert "T1" in topics_of_all_groups(client)["CG"]


def test_readers_of_queues_are_those_that_pulled_last(grouped: ServedBroker) -> None:
    first, second, stranger = (grouped.client(f"client/{number}") for number in (1, 2, 3))
    join(first, "a")
    join(second, "b")
    first.call(11, pull_ext("T1", 0))
    first.call(11, pull_ext("T1", 1))
    grouped.advance(2)
    second.call(11, pull_ext("T1", 1))
    stranger.call(11, pull_ext("T1", 2))
    found = json_body(first.call(RequestCode.DLEDGER_QUEUE_READERS, GROUP))["readers"]
    assert [(one["queueId"], one["clientIds"], one["idleMillis"]) for one in found] == [
        (0, ["a"], 2000),
        (1, ["b"], 0),
        (2, [], 0),
    ]
    assert found[0]["clientAddr"] == str(CLIENT_HOST)
    assert json_body(first.call(RequestCode.DLEDGER_QUEUE_READERS, {"consumerGroup": "other"}))["readers"] == []


def test_who_is_gone_or_long_silent_reads_nothing(grouped: ServedBroker) -> None:
    first, second = grouped.client("client/1"), grouped.client("client/2")
    first.call(11, pull_ext("T1", 0))
    second.call(11, pull_ext("T1", 1))
    second.is_open = False
    asked = grouped.client("client/3")
    found = json_body(asked.call(RequestCode.DLEDGER_QUEUE_READERS, GROUP))["readers"]
    assert [one["queueId"] for one in found] == [0]
    grouped.advance(KEEP_S + 1)
    assert json_body(asked.call(RequestCode.DLEDGER_QUEUE_READERS, GROUP))["readers"] == []


def test_the_table_of_readers_forgets_what_nobody_reads(monkeypatch: pytest.MonkeyPatch, broker: ServedBroker) -> None:
    monkeypatch.setattr(readers, "_LEAST", 10)
    table, client = Readers(), broker.client()
    for number in range(1000):
        table.note("CG", f"T{number}", 0, client, float(number), 0)
    assert len(list(table.of("CG", 999.0))) == KEEP_S + 1
    assert len(table._last) <= 3 * KEEP_S


def test_a_heartbeat_that_another_node_passed_on_is_refused(broker: ServedBroker) -> None:
    replies: list[bytes] = []
    header = encode_json_header(RemotingCommand(34, opaque=7))
    envelope = Envelope("n1/1", "10.0.0.9", 40_000, ("a",), 0, 0, header, b'{"clientID":"a"}')
    origin = ForwardedOrigin(envelope, replies.append)
    assert not isinstance(origin, ClientChannel)
    broker.service.requests.receive_forwarded(origin, Frame(0, envelope.header, envelope.body), 0.0)
    assert b"a heartbeat belongs to the connection that it came through" in replies[0]
    assert len(broker.service.gossip.local) == 0
