"""Statistics of topics, queues, groups and producers, as operators see them."""

from __future__ import annotations

from typing import Any

import pytest
from served_broker import FakeClient, ServedBroker, assert_refused, json_body, make_group

from dledger_broker.clients.tables import ClientRow
from dledger_broker.features.statistics import queues
from dledger_remoting.codes import LanguageCode, RequestCode, ResponseCode
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import scan_records
from dledger_remoting.statistics import QueueRange, decode_topic_stats
from dledger_remoting.topics import MessageQueue

ASKED = {"topic": "T1", "queueId": "0", "index": "0", "count": "10"}


def commit(broker: ServedBroker, group: str, offset: int) -> None:
    make_group(broker, group)
    client = broker.client(f"commits/{group}/{offset}")
    ext = {"consumerGroup": group, "topic": "T1", "queueId": "0", "commitOffset": str(offset)}
    opaque = client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    broker.advance(1)
    assert client.answered(opaque).code == ResponseCode.SUCCESS


def join(client: FakeClient, group: str = "CG") -> None:
    """Join a group as a consumer of the tag red of T1."""
    entry = SubscriptionData("T1", "red", tags_set=["red"], code_set=[112785], sub_version=1)
    beat(client, HeartbeatData("c1", consumer_data_set=[ConsumerData(group, subscription_data_set=[entry])]))


def produce(client: FakeClient, client_id: str, *groups: str) -> None:
    beat(client, HeartbeatData(client_id, [ProducerData(group) for group in groups]))


def beat(client: FakeClient, heartbeat: HeartbeatData) -> None:
    broker = client.broker
    broker.service.gossip.local.heartbeat(client, heartbeat, LanguageCode.GO, 479, broker.memory.env.now())


def contents(client: FakeClient, **fields: str) -> dict[str, Any]:
    """Return the contents of a consume queue."""
    answer = client.call_from_disk(RequestCode.QUERY_CONSUME_QUEUE, ASKED | fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found: dict[str, Any] = json_body(answer)
    return found


def test_topic_statistics_have_offsets_and_last_store_time_of_each_queue(broker: ServedBroker) -> None:
    """The answer has maps keyed by objects, because RocketMQ's tools read no other maps."""
    client = broker.client()
    for _ in range(2):
        sent_ms = broker.memory.env.wall_ms()
        client.send_message("T1", b"x")
        broker.advance(5)
    answer = client.call_from_disk(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"})
    table, _ = decode_topic_stats(answer.body)
    assert len(table) == broker.memory.machine.state.topics["T1"].queue_count
    assert table[MessageQueue("broker-a", 0, "T1")] == QueueRange(sent_ms, 2, 0)
    assert table[MessageQueue("broker-a", 1, "T1")] == QueueRange(0, 0, 0)
    assert answer.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:{')
    missing = client.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "absent"})
    assert (missing.code, missing.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[absent] not exist")


def test_groups_of_a_topic_are_groups_with_members_or_offsets(broker: ServedBroker) -> None:
    client = broker.client()
    join(client, "ONLINE")
    commit(broker, "COMMITTED", 0)
    told = client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T1"})
    assert json_body(told) == {"groupList": ["COMMITTED", "ONLINE"]}
    assert json_body(client.call(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T2"})) == {"groupList": []}
    for group, topics in (("COMMITTED", ["T1"]), ("ONLINE", [])):
        told = client.call(RequestCode.GET_TOPICS_OF_GROUP, {"group": group})
        own_address = broker.group.address_of(broker.group.node_id)
        assert json_body(told) == {"topicList": topics, "brokerAddr": own_address}


def test_the_delay_of_a_group_is_reported_as_a_time_span(client: FakeClient) -> None:
    sent_ms = []
    for _ in range(3):
        sent_ms.append(client.broker.memory.env.wall_ms())
        client.send_message("T1", b"x")
        client.broker.advance(10)
    commit(client.broker, "CG", 1)

    def span() -> dict[str, Any]:
        answer = client.call_from_disk(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T1", "group": "CG"})
        spans: list[dict[str, Any]] = json_body(answer)["consumeTimeSpanSet"]
        assert [one["messageQueue"]["queueId"] for one in spans] == [*range(len(spans))]
        assert all((one["minTimeStamp"], one["delayTime"]) == (-1, 0) for one in spans[1:])
        return spans[0]

    late = span()
    assert (late["minTimeStamp"], late["maxTimeStamp"], late["consumeTimeStamp"]) == (
        sent_ms[0],
        sent_ms[2],
        sent_ms[0],
    )
    assert late["delayTime"] == client.broker.memory.env.wall_ms() - sent_ms[1]
    commit(client.broker, "CG", 3)
    done = span()
    assert (done["consumeTimeStamp"], done["delayTime"]) == (sent_ms[2], 0)


def test_the_list_of_system_topics_has_cluster_and_broker_group(broker: ServedBroker) -> None:
    topics = json_body(broker.client().call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))["topicList"]
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", broker.service.config.cluster} <= set(topics)
    assert "T1" not in topics


# ---- contents of a consume queue, and subscriptions


def test_units_have_the_positions_sizes_and_tag_codes_of_records(client: FakeClient) -> None:
    for properties in ("TAGS\x01red\x02", ""):
        client.send_message("T1", b"x", properties=properties)
    told = contents(client)
    assert told["queueData"] == [
        {"physicOffset": record.physical_offset, "physicSize": record.size, "tagsCode": code, "eval": False}
        for record, code in zip(scan_records(client.pull("T1").body), (112785, 0), strict=True)
    ]
    assert (told["minQueueIndex"], told["maxQueueIndex"]) == (0, 2)
    assert not {"subscriptionData", "filterData"} & told.keys()
    for asked, first, end in (({"index": "1"}, 1, 2), ({"count": "1"}, 0, 1), ({"index": "2"}, 2, 2)):
        assert contents(client, **asked)["queueData"] == told["queueData"][first:end]


def test_the_number_of_units_in_an_answer_is_limited(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_UNITS", 2)
    for _ in range(3):
        client.send_message("T1", b"x")
    assert len(contents(client, count="2147483647")["queueData"]) == 2


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"topic": "absent"}, 1, "0@absent is not exist!"),
        ({"queueId": "9"}, 1, "9@T1 is not exist!"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, ""),
        ({"index": "-1"}, 29, "below 0"),
        ({"count": "-1"}, 29, "below 0"),
    ],
)
def test_invalid_questions_about_a_queue_are_refused(
    client: FakeClient, fields: dict[str, str], code: int, text: str
) -> None:
    client.send_message("T1", b"x")
    assert_refused(client.call(RequestCode.QUERY_CONSUME_QUEUE, ASKED | fields), code, text)


def test_a_group_is_reported_with_its_subscription_if_there_is_one(client: FakeClient) -> None:
    asked = {"topic": "T1", "group": "CG"}
    client.send_message("T1", b"x")
    assert contents(client, consumerGroup="CG")["filterData"] == "CG@T1 is not online!"
    assert json_body(client.call(RequestCode.GET_SUBSCRIPTION_OF_GROUP, asked)) == {"group": "CG", "topic": "T1"}
    join(client)
    told = contents(client, consumerGroup="CG")
    assert (told["subscriptionData"]["subString"], told["filterData"]) == ("red", "null")
    told = json_body(client.call(RequestCode.GET_SUBSCRIPTION_OF_GROUP, asked))
    assert told["subscriptionData"]["subString"] == "red"


# ---- producers


def test_each_client_of_a_producer_group_on_all_nodes_is_listed_once(client: FakeClient) -> None:
    produce(client, "here", "PG")
    rows = [ClientRow(name, "10.0.0.7:1", LanguageCode.JAVA, 401, ("PG",), ()) for name in ("here", "there")]
    client.broker.service.gossip.merged.replace("n2", rows)
    connections = json_body(client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "PG"}))
    assert connections == {
        "connectionSet": [
            {"clientAddr": str(client.address), "clientId": "here", "language": "GO", "version": 479},
            {"clientAddr": "10.0.0.7:1", "clientId": "there", "language": "JAVA", "version": 401},
        ]
    }
    nobody = client.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "OTHER"})
    assert (nobody.code, nobody.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[OTHER] not exist")


def test_producers_of_a_node_are_listed_with_the_times_of_their_heartbeats(broker: ServedBroker) -> None:
    first, second = broker.client(), broker.client("client/2")
    second.address = HostAddress("10.0.0.10", 5)
    heard_ms = broker.memory.env.wall_ms()
    produce(first, "b", "PG")
    broker.advance(7)
    produce(second, "a", "PG", "QG")
    told = json_body(first.call(RequestCode.GET_ALL_PRODUCER_INFO))["data"]
    times = {one["clientId"]: one["lastUpdateTimestamp"] for one in told["PG"]}
    assert list(times.items()) == [("a", heard_ms + 7_000), ("b", heard_ms)]
    row = {"clientId": "a", "language": "GO", "remoteIP": "/10.0.0.10:5", "version": 479}
    assert told["QG"] == [{**row, "lastUpdateTimestamp": heard_ms + 7_000}]
