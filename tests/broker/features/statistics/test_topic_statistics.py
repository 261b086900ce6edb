"""Statistics of topics: what their queues hold, who consumes them and how late."""

from __future__ import annotations

from typing import Any

from served_broker import FakeClient, ServedBroker, json_body, send_ext

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.statistics import QueueRange, decode_topic_stats
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig


def send(client: FakeClient, topic: str = "T1", queue_id: int = 0) -> None:
    assert client.call(RequestCode.SEND_MESSAGE_V2, send_ext(topic, queue_id), b"x").code == ResponseCode.SUCCESS


def commit(broker: ServedBroker, group: str, offset: int, topic: str = "T1") -> None:
    broker.groups.ensure_group(SubscriptionGroupConfig(group), lambda error: None)
    broker.settle()
    client = broker.client(f"commits/{group}/{topic}/{offset}")
    ext = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    opaque = client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    broker.advance(1)
    assert client.answered(opaque).code == ResponseCode.SUCCESS


def test_queues_are_told_with_their_offsets_and_when_something_came_last(broker: ServedBroker) -> None:
    """Maps keyed by objects: RocketMQ's tools read no others."""
    client = broker.client()
    send(client)
    broker.advance(5)
    sent_ms = broker.memory.env.wall_ms()
    send(client)
    broker.advance(5)
    answer = client.call_from_disk(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"})
    table, _ = decode_topic_stats(answer.body)
    assert len(table) == broker.memory.machine.state.topics["T1"].queue_count
    assert table[MessageQueue("broker-a", 0, "T1")] == QueueRange(sent_ms, 2, 0)
    assert table[MessageQueue("broker-a", 1, "T1")] == QueueRange(0, 0, 0)
    assert answer.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:{')
    missing = client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "absent"})
    assert (missing.code, missing.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[absent] not exist")


def test_groups_of_a_topic_are_those_with_members_and_those_with_offsets(broker: ServedBroker) -> None:
    client = broker.client()
    subscriptions = [SubscriptionData("T1", "*", sub_version=1)]
    heartbeat = HeartbeatData("c1", consumer_data_set=[ConsumerData("ONLINE", subscription_data_set=subscriptions)])
    broker.service.gossip.local.heartbeat(client, heartbeat, 0, 479, broker.memory.env.now())
    commit(broker, "COMMITTED", 0)
    told = client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T1"})
    assert json_body(told) == {"groupList": ["COMMITTED", "ONLINE"]}
    assert json_body(client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T2"})) == {"groupList": []}
    for group, topics in (("COMMITTED", ["T1"]), ("ONLINE", [])):
        told = client.call(RequestCode.GET_TOPICS_OF_GROUP, {"group": group})
        own_address = broker.group.address_of(broker.group.node_id)
        assert json_body(told) == {"topicList": topics, "brokerAddr": own_address}


def test_how_late_a_group_is_is_told_in_time(broker: ServedBroker) -> None:
    client = broker.client()
    sent_ms = []
    for _ in range(3):
        sent_ms.append(broker.memory.env.wall_ms())
        send(client)
        broker.advance(10)
    commit(broker, "CG", 1)

    def span() -> dict[str, Any]:
        answer = client.call_from_disk(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T1", "group": "CG"})
        spans: list[dict[str, Any]] = json_body(answer)["consumeTimeSpanSet"]
        assert [one["messageQueue"]["queueId"] for one in spans] == [*range(len(spans))]
        assert all((one["minTimeStamp"], one["delayTime"]) == (-1, 0) for one in spans[1:])
        return spans[0]

    late = span()
    assert (late["minTimeStamp"], late["maxTimeStamp"]) == (sent_ms[0], sent_ms[2])
    assert late["consumeTimeStamp"] == sent_ms[0]
    assert late["delayTime"] == broker.memory.env.wall_ms() - sent_ms[1]
    commit(broker, "CG", 3)
    done = span()
    assert (done["consumeTimeStamp"], done["delayTime"]) == (sent_ms[2], 0)


def test_topics_of_the_system_are_told_with_this_clusters_own(broker: ServedBroker) -> None:
    topics = json_body(broker.client().call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", broker.service.config.cluster} <= set(topics)
    assert "T1" not in topics
