"""What operators see of a consume queue (321), and of what a group subscribes to (345)."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, ServedBroker, json_body

from dledger_broker.features.statistics import queues
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from dledger_remoting.record import scan_records

ASKED = {"topic": "T1", "queueId": "0", "index": "0", "count": "10"}


def join(broker: ServedBroker, client: FakeClient) -> None:
    entry = SubscriptionData("T1", "red", tags_set=["red"], code_set=[112785], sub_version=1)
    heartbeat = HeartbeatData("c1", consumer_data_set=[ConsumerData("CG", subscription_data_set=[entry])])
    broker.service.gossip.local.heartbeat(client, heartbeat, 0, 479, broker.memory.env.now())


def ask(client: FakeClient, **fields: str) -> dict:
    answer = client.call_from_disk(RequestCode.QUERY_CONSUME_QUEUE, ASKED | fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return json_body(answer)


def test_units_say_where_records_stand_and_what_their_tags_are(client: FakeClient) -> None:
    for properties in ("TAGS\x01red\x02", ""):
        client.send_message("T1", b"x", properties=properties)
    told = ask(client)
    body = client.pull("T1", offset=0, subscription="*").body
    assert told["queueData"] == [
        {"physicOffset": record.physical_offset, "physicSize": record.size, "tagsCode": code, "eval": False}
        for record, code in zip(scan_records(body), (112785, 0), strict=True)
    ]
    assert (told["minQueueIndex"], told["maxQueueIndex"]) == (0, 2)
    assert not {"subscriptionData", "filterData"} & told.keys()
    assert ask(client, index="1")["queueData"] == told["queueData"][1:]
    assert ask(client, count="1")["queueData"] == told["queueData"][:1]
    assert ask(client, index="2")["queueData"] == []


def test_one_answer_has_no_more_units_than_the_limit(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "MAX_UNITS", 2)
    for _ in range(3):
        client.send_message("T1", b"x")
    assert len(ask(client, count="2147483647")["queueData"]) == 2


def test_a_group_that_is_named_is_told_with_what_it_subscribes_to_or_that_it_is_not_there(
    broker: ServedBroker, client: FakeClient
) -> None:
    client.send_message("T1", b"x")
    assert ask(client, consumerGroup="CG")["filterData"] == "CG@T1 is not online!"
    join(broker, client)
    told = ask(client, consumerGroup="CG")
    assert (told["subscriptionData"]["subString"], told["filterData"]) == ("red", "null")


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
def test_what_is_not_there_is_said_in_rocketmqs_words(
    client: FakeClient, fields: dict[str, str], code: int, text: str
) -> None:
    client.send_message("T1", b"x")
    answer = client.call(RequestCode.QUERY_CONSUME_QUEUE, ASKED | fields)
    assert answer.code == code
    assert text in (answer.remark or "")


def test_a_groups_subscription_to_a_topic_is_its_newest_or_none(broker: ServedBroker, client: FakeClient) -> None:
    asked = {"topic": "T1", "group": "CG"}
    assert json_body(client.call(RequestCode.GET_SUBSCRIPTION_OF_GROUP, asked)) == {"group": "CG", "topic": "T1"}
    join(broker, client)
    told = json_body(client.call(RequestCode.GET_SUBSCRIPTION_OF_GROUP, asked))
    assert told["subscriptionData"]["subString"] == "red"
