"""Answers of a broker about a consumer group: its members, their progress, and the readers of its queues."""

import json
from pathlib import Path
from typing import Any

import pytest
from served_broker import CLIENT_HOST, FakeClient, MakeBroker, ServedBroker, join, json_body, pull_ext

from dledger.errors import BusyError
from dledger_broker.addresses import Address
from dledger_broker.clients import readers
from dledger_broker.clients.gossip import COMPLETE_S
from dledger_broker.clients.readers import KEEP_S, Readers
from dledger_broker.clients.tables import ClientChannel
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin
from dledger_broker.kernel.trying_again import RETRY_S
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.consumers import QueueProgress, decode_consume_stats
from dledger_remoting.fastjson import to_standard_json
from dledger_remoting.frame import Frame
from dledger_remoting.heartbeat import SubscriptionData
from dledger_remoting.hosts import HostAddress
from dledger_remoting.topics import MessageQueue

GROUP = {"consumerGroup": "CG"}
HEARTBEAT = (
    b'{"clientID":"c1","consumerDataSet":[{"groupName":"NEW","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    b'"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[]}]}'
)


def commit(client: FakeClient, topic: str, queue_id: int, offset: int) -> None:
    """Commit an offset of CG, and wait for the answer."""
    ext = {**GROUP, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    opaque = client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    client.broker.advance(1)
    assert client.answered(opaque).code == ResponseCode.SUCCESS


def readers_of(client: FakeClient, group: str = "CG") -> list[dict[str, Any]]:
    return json_body(client.call(RequestCode.DLEDGER_QUEUE_READERS, {"consumerGroup": group}))["readers"]


def progress_of(client: FakeClient, **fields: str) -> dict[MessageQueue, QueueProgress]:
    return decode_consume_stats(client.call_from_disk(RequestCode.GET_CONSUME_STATS, {**GROUP, **fields}).body)


@pytest.fixture
def grouped(broker: ServedBroker) -> ServedBroker:
    """Return a broker with topics T1 and T2 and the consumer group CG."""
    broker.memory.create_topic("T2")
    return broker.put_group()


def test_members_are_listed_with_addresses_languages_and_newest_subscriptions(broker: ServedBroker) -> None:
    first, second = broker.client(), broker.client("client/2")
    second.address = HostAddress("10.0.0.10", 5)
    join(first, "b", SubscriptionData("T1", "old || older", sub_version=1))
    join(second, "a", SubscriptionData("T1", "new", sub_version=2), language=LanguageCode.GO)
    body = json_body(first.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP))
    rows = [
        (row["clientId"], row["clientAddr"], row["language"], row["subscriptions"]) for row in body["connectionSet"]
    ]
    members = [("a", "10.0.0.10:5", "GO", {"T1": "new"}), ("b", str(CLIENT_HOST), "JAVA", {"T1": "old || older"})]
    assert (rows, body["subscriptionTable"]["T1"]["subString"]) == (members, "new")


@pytest.fixture
def lone(make_broker: MakeBroker) -> FakeClient:
    """Return a client of a node that waits for the table of another node."""
    return make_broker(peers={"n1": Address("127.0.0.1", 1)}, secret_file=Path("unused")).client()


def test_members_are_listed_only_after_the_other_nodes_or_a_time_limit(lone: FakeClient) -> None:
    opaque = lone.send(RequestCode.GET_CONSUMER_CONNECTION_LIST, GROUP)
    lone.broker.settle()
    assert not lone.has_answer(opaque)
    lone.broker.advance(COMPLETE_S + 1)
    assert lone.answered(opaque).code == ResponseCode.CONSUMER_NOT_ONLINE


def topics_of_all_groups(client: FakeClient) -> dict[str, list[str]]:
    """Return the topics of each group in the answer to 317."""
    body = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body
    groups = json.loads(to_standard_json(body))["consumeStatsList"]
    return {group: [topic_of(one) for one in progress] for each in groups for group, progress in each.items()}


def topic_of(progress: dict[str, Any]) -> str:
    """Return the topic of a group's progress. Keys of standard JSON are texts, in which RocketMQ's objects are JSON."""
    (topic,) = {json.loads(queue)["topic"] for queue in progress["offsetTable"]}
    return str(topic)


def test_progress_of_one_group_and_of_all_groups_leaves_out_unsubscribed_topics(grouped: ServedBroker) -> None:
    """RocketMQ does the same: a topic that was given up would be behind forever, and so would a dashboard's sum."""
    client = grouped.client()
    retries = ["%RETRY%CG", "%RETRY%CG+T2", "%RETRY%CG_T2"]
    for topic in ("%RETRY%CG+T1", *retries):
        grouped.memory.create_topic(topic)
    for topic in ("T1", "T2", "%RETRY%CG+T1", *retries):
        commit(client, topic, 0, 0)
    assert topics_of_all_groups(client) == {"CG": ["%RETRY%CG", "%RETRY%CG+T1", *retries[1:], "T1", "T2"]}
    join(client, "a", SubscriptionData("T2"))
    assert topics_of_all_groups(client) == {"CG": [*retries, "T2"]}
    assert {queue.topic for queue in progress_of(client)} == {"T2", *retries}
    assert progress_of(client, topic="T1") == {}
    grouped.service.gossip.local.unregister("a", None, "CG")
    assert "T1" in topics_of_all_groups(client)["CG"]


def test_the_reader_of_a_queue_is_the_client_that_pulled_last(grouped: ServedBroker) -> None:
    first, second, stranger = (grouped.client(f"client/{number}") for number in (1, 2, 3))
    join(first, "a")
    join(second, "b")
    first.call(11, pull_ext("T1", 0))
    first.call(11, pull_ext("T1", 1))
    grouped.advance(2)
    second.call(11, pull_ext("T1", 1))
    stranger.call(11, pull_ext("T1", 2))
    found = readers_of(first)
    seen = [(one["queueId"], one["clientIds"], one["idleMillis"]) for one in found]
    assert seen == [(0, ["a"], 2000), (1, ["b"], 0), (2, [], 0)]
    assert found[0]["clientAddr"] == str(CLIENT_HOST)
    assert readers_of(first, "other") == []


def test_closed_or_silent_clients_are_not_listed_as_queue_readers(grouped: ServedBroker) -> None:
    clients = [grouped.client(f"client/{number}") for number in (1, 2, 3)]
    for queue_id in (0, 1):
        clients[queue_id].call(11, pull_ext("T1", queue_id))
    clients[1].is_open = False
    assert [one["queueId"] for one in readers_of(clients[2])] == [0]
    grouped.advance(KEEP_S + 1)
    assert readers_of(clients[2]) == []


def test_the_table_of_readers_forgets_queues_not_pulled(monkeypatch: pytest.MonkeyPatch, broker: ServedBroker) -> None:
    monkeypatch.setattr(readers, "_MIN_LIMIT", 10)
    table, client = Readers(), broker.client()
    for number in range(1000):
        table.note("CG", f"T{number}", 0, client, float(number), 0, 1)
    assert len(list(table.of("CG", 999.0))) == KEEP_S + 1
    assert len(table._last) <= 3 * KEEP_S


def test_a_forwarded_heartbeat_is_refused(broker: ServedBroker) -> None:
    replies: list[bytes] = []
    header = encode_json_header(RemotingCommand(34, opaque=7))
    envelope = Envelope("n1/1", "10.0.0.9", 40_000, ("a",), 0, 0, header, b'{"clientID":"a"}')
    origin = ForwardedOrigin(envelope, replies.append)
    assert not isinstance(origin, ClientChannel)
    broker.service.requests.receive_forwarded(origin, Frame(0, envelope.header, envelope.body), 0.0)
    assert b"a heartbeat belongs to the connection that it came through" in replies[0]
    assert len(broker.service.gossip.local) == 0


def test_a_leader_deposed_while_waiting_for_tables_does_not_list_members(lone: FakeClient) -> None:
    """Its own table may lack most members, and the listed members would divide the queues anew."""
    opaque = lone.send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GROUP)
    lone.broker.settle()
    assert not lone.has_answer(opaque)
    lone.broker.memory.node.step_down()
    lone.broker.advance(lone.broker.config.forward_hold_ms / 1000 + 1)
    assert lone.answered(opaque).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_list_that_fits_no_frame_is_an_error(lone: FakeClient) -> None:
    for number in range(17):
        join(lone, f"{number:0{1 << 20}d}")
    opaque = lone.send(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GROUP)
    lone.broker.advance(COMPLETE_S + 1)
    answer = lone.answered(opaque)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "larger than" in (answer.remark or "")


def test_a_consumer_group_that_the_log_refused_is_created_later(broker: ServedBroker, client: FakeClient) -> None:
    """Another node tells of a client only when the client changes, so nobody else would ask again."""
    broker.memory.node.stage_error = BusyError("too many bytes wait for a majority")
    client.send(34, body=HEARTBEAT)
    broker.settle()
    broker.memory.node.stage_error = None
    assert "NEW" not in broker.table(GROUPS).by_name
    broker.advance(RETRY_S)
    broker.settle()
    assert "NEW" in broker.table(GROUPS).by_name
    assert "%RETRY%NEW" in broker.memory.machine.state.topics


def test_a_heartbeat_after_other_requests_subscribes_to_leader_notices(client: FakeClient) -> None:
    client.send_message("T1")
    assert not client.wants_leader_notices
    client.send(34, {"dledgerNotify": "true"}, HEARTBEAT)
    client.broker.settle()
    assert client.wants_leader_notices
