"""Counts of messages stored and delivered, and how far groups are: as mqadmin and dashboards show them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served_broker import FakeClient, ServedBroker, json_body, pull_ext, send_ext

from dledger_broker.features.statistics import samples
from dledger_broker.features.statistics.requests import Statistics
from dledger_broker.features.statistics.samples import PERIOD_S, Samples, Total
from dledger_broker.kernel import deliveries
from dledger_broker.kernel.deliveries import Deliveries, TopicSizes
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.consumers import decode_consume_stats
from dledger_remoting.fastjson import to_standard_json
from dledger_remoting.statistics import decode_topic_stats
from dledger_remoting.topics import MessageQueue, SubscriptionGroupConfig

MINUTE, HOUR, DAY = 6, 360, 8_640
"""In looks."""


def take(counted: Samples, now_ms: int, totals: list[Total]) -> int:
    """Look at all totals; returns after how many parts others could go on."""
    return sum(1 for _ in counted.look(now_ms, totals))


def test_a_look_at_many_numbers_lets_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LOOKED_AT_A_TURN", 2)
    counted = Samples()
    assert take(counted, 0, [Total(("A", str(number)), 1, 1) for number in range(5)]) == 2
    looking = counted.look(10_000, [Total(("A", str(number)), 3, 3) for number in range(3)])
    next(looking)
    assert counted.stats(("A", "4")) is not None, "as of before"
    assert next(looking, "done") == "done"
    assert counted.stats(("A", "4")) is None


def test_a_minute_an_hour_and_a_day_are_counted_as_rocketmq_counts_them() -> None:
    counted = Samples()
    key = ("TOPIC_PUT_NUMS", "T1")
    for look in range(2 * DAY + 1):
        take(counted, look * 10_000, [Total(key, 20 * look, 10 * look)])
    stats = counted.stats(key)
    assert stats is not None
    assert (stats.stats_minute.sum, stats.stats_minute.tps, stats.stats_minute.avgpt) == (20 * MINUTE, 2.0, 2.0)
    assert (stats.stats_hour.sum, stats.stats_hour.tps) == (20 * HOUR, 2.0)
    assert (stats.stats_day.sum, stats.stats_day.tps) == (20 * DAY, 2.0)


def test_what_is_gone_is_forgotten_and_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_SERIES", 2)
    counted = Samples()
    take(counted, 0, [Total(("A", name), 1, 1) for name in ("a", "b", "c")])
    assert [counted.stats(("A", name)) is not None for name in ("a", "b", "c")] == [True, True, False]
    take(counted, 10_000, [Total(("A", name), 1, 1) for name in ("b", "c")])
    assert [counted.stats(("A", name)) is not None for name in ("a", "b", "c")] == [False, True, True]


def test_a_number_that_begins_anew_is_counted_from_there() -> None:
    """1,000,000 messages, then 10 of a new topic of that name: that is not -999,990, nor 2,000,000 a million more."""
    counted = Samples()
    key = ("TOPIC_PUT_NUMS", "T1")
    totals = (Total(key, 1_000_000, 9, 1), Total(key, 10, 10, 2), Total(key, 2_000_000, 20, 3), Total(key, 5, 1, 3))
    for look, total in enumerate(totals):
        take(counted, look * 20_000, [total])
        assert counted.per_second(key, total.incarnation) == 0
        take(counted, look * 20_000 + 10_000, [Total(key, total.value + 20, total.times + 1, total.incarnation)])
        stats = counted.stats(key, total.incarnation)
        assert stats is not None
        assert (stats.stats_minute.sum, stats.stats_minute.tps, stats.stats_hour.sum) == (20, 2.0, 0)
        assert counted.stats(key, total.incarnation + 1) is None
        assert counted.per_second(key, total.incarnation + 1) == 0


def test_pairs_of_groups_and_topics_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAX_PAIRS", 1)
    counted = Deliveries()
    for group in ("first", "second", "first"):
        counted.count(group, "T1", 2, 100)
    assert {pair: (one.messages, one.size, one.times) for pair, one in counted.pairs.items()} == {
        ("first", "T1"): (4, 200, 2)
    }


def test_topics_whose_bytes_are_counted_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAX_TOPICS", 1)
    counted = TopicSizes()
    for topic in ("first", "second", "first"):
        counted.count(topic, 100, 2)
    assert counted.by_topic == {"first": (200, 4)}
    counted.forget("first")
    counted.count("second", 5, 1)
    assert counted.by_topic == {"second": (5, 1)}


def test_bytes_of_a_turn_with_several_topics_are_counted_each_with_its_own(broker: ServedBroker) -> None:
    client = broker.client()
    for topic, body in (("T1", b"x"), ("T2", b"y" * 100), ("T1", b"x")):
        client.send(RequestCode.SEND_MESSAGE_V2, send_ext(topic), body)
    broker.settle()
    sizes = broker.counters.sizes.by_topic
    assert (sizes["T1"][1], sizes["T2"][1]) == (2, 1)
    assert sizes["T2"][0] == sizes["T1"][0] // 2 + 99
    assert sum(size for size, _ in sizes.values()) == broker.counters.bytes_in


def asked(client: FakeClient, name: str, key: str) -> RemotingCommand:
    return client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def told(client: FakeClient, name: str, key: str) -> dict[str, Any]:
    answer = asked(client, name, key)
    assert answer.code == ResponseCode.SUCCESS
    minute: dict[str, Any] = json_body(answer)["statsMinute"]
    return minute


def make_group(broker: ServedBroker, name: str) -> None:
    broker.groups.ensure_group(SubscriptionGroupConfig(name), lambda error: None)
    broker.settle()


def send_and_pull(client: FakeClient, messages: int, group: str = "CG") -> None:
    for _ in range(messages):
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
    pulled = client.call_from_disk(RequestCode.PULL_MESSAGE, pull_ext("T1", 0, consumerGroup=group))
    assert pulled.code == ResponseCode.SUCCESS


OF_A_TOPIC = {"TOPIC_PUT_NUMS": "T1", "TOPIC_PUT_SIZE": "T1", "GROUP_GET_NUMS": "T1@CG", "GROUP_GET_SIZE": "T1@CG"}


@pytest.mark.parametrize("messages", [2, 40], ids=["fewer than before", "more than before"])
def test_a_topic_that_is_made_again_between_two_looks_is_counted_from_its_beginning(
    broker: ServedBroker, messages: int
) -> None:
    client, statistics = broker.client(), broker.service.parts[Statistics]
    make_group(broker, "CG")
    statistics.start()
    for _ in range(2):
        broker.advance(PERIOD_S)
        send_and_pull(client, 10)
    broker.advance(PERIOD_S)
    assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 10
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    assert asked(client, "TOPIC_PUT_NUMS", "T1").code == ResponseCode.SYSTEM_ERROR
    send_and_pull(client, messages)
    for _ in range(2):
        for name, key in OF_A_TOPIC.items():
            assert (told(client, name, key)["sum"], told(client, name, key)["tps"]) == (0, 0.0), name
        ranges = client.call_from_disk(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"})
        assert decode_topic_stats(ranges.body)[1] == 0.0
        progress = client.call_from_disk(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T1"})
        assert b'{"consumeTps":0.0,' in progress.body
        broker.advance(PERIOD_S)
    send_and_pull(client, 1)
    broker.advance(PERIOD_S)
    assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 1
    statistics.stop()


def test_a_snapshot_with_the_same_topic_leaves_its_numbers(broker: ServedBroker) -> None:
    client, statistics = broker.client(), broker.service.parts[Statistics]
    statistics.start()
    client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
    broker.advance(PERIOD_S)
    for _ in range(3):
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
    broker.memory.node.snapshot()
    broker.memory.node.restore()
    broker.advance(PERIOD_S)
    assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 3
    statistics.stop()


def test_what_is_deleted_has_no_numbers_from_then_on(broker: ServedBroker) -> None:
    client, statistics = broker.client(), broker.service.parts[Statistics]
    for group in ("CG", "OTHER"):
        make_group(broker, group)
        send_and_pull(client, 1, group)
    statistics.start()
    assert told(client, "GROUP_GET_NUMS", "T1@CG")["sum"] == 0
    broker.groups.delete_group("CG", lambda _: None)
    broker.settle()
    assert asked(client, "GROUP_GET_NUMS", "T1@CG").code == ResponseCode.SYSTEM_ERROR
    assert asked(client, "GROUP_GET_NUMS", "T1@OTHER").code == ResponseCode.SUCCESS
    broker.memory.delete_topic("T1")
    for name, key in (OF_A_TOPIC | {"GROUP_GET_NUMS": "T1@OTHER"}).items():
        assert asked(client, name, key).code == ResponseCode.SYSTEM_ERROR, name
    statistics.stop()


def test_a_deleted_group_makes_room_for_another_one(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAX_PAIRS", 1)
    client, statistics = broker.client(), broker.service.parts[Statistics]
    statistics.start()
    for group in ("first", "second"):
        make_group(broker, group)
        send_and_pull(client, 1, group)
        broker.counters.sent_back.count(group, "T1", 1, 1)
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        assert told(client, name, "T1@first")["sum"] == 0
        assert asked(client, name, "T1@second").code == ResponseCode.SYSTEM_ERROR
    broker.groups.delete_group("first", lambda _: None)
    broker.advance(PERIOD_S)
    send_and_pull(client, 1, "second")
    broker.counters.sent_back.count("second", "T1", 1, 1)
    for name in ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS"):
        assert told(client, name, "T1@second")["sum"] == 0
    statistics.stop()


def test_groups_of_the_system_are_counted_although_nobody_makes_them(broker: ServedBroker) -> None:
    client, statistics = broker.client(), broker.service.parts[Statistics]
    statistics.start()
    send_and_pull(client, 1, "CID_RMQ_SYS_ANY")
    broker.advance(PERIOD_S)
    send_and_pull(client, 1, "CID_RMQ_SYS_ANY")
    broker.advance(PERIOD_S)
    assert told(client, "GROUP_GET_NUMS", "T1@CID_RMQ_SYS_ANY")["sum"] > 0
    statistics.stop()


def test_what_is_not_followed_for_want_of_room_is_told_not_to_exist(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 0 would say that nothing comes."""
    client, statistics = broker.client(), broker.service.parts[Statistics]
    client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
    monkeypatch.setattr(samples, "MAX_SERIES", 3)
    statistics.start()
    client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T2", 0), b"x")
    for _ in range(2):
        assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 0
        for name, key in (("TOPIC_PUT_NUMS", "T2"), ("TOPIC_PUT_SIZE", "T2")):
            assert asked(client, name, key).code == ResponseCode.SYSTEM_ERROR, name
        broker.advance(PERIOD_S)
    statistics.stop()


def test_messages_are_counted_where_they_are_stored_and_where_they_are_got(broker: ServedBroker) -> None:
    client, cluster = broker.client(), broker.service.config.cluster
    broker.groups.ensure_group(SubscriptionGroupConfig("CG"), lambda error: None)
    broker.settle()
    statistics = broker.service.parts[Statistics]
    send = send_ext("T1", 0)
    client.call(RequestCode.SEND_MESSAGE_V2, send, b"x")
    client.call(RequestCode.PULL_MESSAGE, pull_ext("T1", 0))
    statistics.start()
    broker.advance(PERIOD_S)
    for _ in range(20):
        client.call(RequestCode.SEND_MESSAGE_V2, send, b"x")
    assert client.call(RequestCode.PULL_MESSAGE, pull_ext("T1", 0, 1)).code == ResponseCode.SUCCESS
    broker.advance(PERIOD_S)
    pulled = told(client, "GROUP_GET_NUMS", "T1@CG")
    assert (told(client, "TOPIC_PUT_NUMS", "T1")["sum"], told(client, "TOPIC_PUT_NUMS", "T1")["tps"]) == (20, 1.0)
    assert (pulled["sum"], pulled["avgpt"]) == (20, 20.0)
    assert told(client, "GROUP_GET_SIZE", "T1@CG")["sum"] > 20 * 90
    assert told(client, "TOPIC_PUT_SIZE", "T1")["sum"] == told(client, "GROUP_GET_SIZE", "T1@CG")["sum"]
    assert told(client, "BROKER_PUT_NUMS", cluster)["sum"] == 20
    assert told(client, "BROKER_GET_NUMS", cluster)["sum"] == 20
    assert decode_topic_stats(client.call_from_disk(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"}).body)[1] == 1.0
    progress = client.call_from_disk(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T1"})
    assert b'{"consumeTps":1.0,' in progress.body
    for name, key in (("A", "B"), ("GROUP_GET_LATENCY", "T1@CG"), ("GROUP_GET_FROM_DISK_NUMS", "T1@CG")):
        missing = client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        assert (missing.code, missing.remark) == (ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    statistics.stop()


def test_what_came_since_the_last_look_is_counted_as_nothing_yet(broker: ServedBroker) -> None:
    """A dashboard that asks for a topic's counts right behind its first message must not hear that it has none."""
    client, cluster = broker.client(), broker.service.config.cluster
    broker.groups.ensure_group(SubscriptionGroupConfig("CG"), lambda error: None)
    broker.settle()
    names = {"TOPIC_PUT_NUMS": "T1", "TOPIC_PUT_SIZE": "T1", "GROUP_GET_NUMS": "T1@CG", "GROUP_GET_SIZE": "T1@CG"}
    for name, key in names.items():
        ext = {"statsName": name, "statsKey": key}
        assert client.call(RequestCode.VIEW_BROKER_STATS_DATA, ext).code == ResponseCode.SYSTEM_ERROR, name
    client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
    client.call(RequestCode.PULL_MESSAGE, pull_ext("T1", 0))
    for name, key in (names | {"BROKER_PUT_NUMS": cluster}).items():
        assert told(client, name, key)["sum"] == 0, name


def test_topics_that_come_during_a_look_do_not_end_it(broker: ServedBroker) -> None:
    client = broker.client()
    client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
    totals = broker.service.parts[Statistics]._counting._totals()
    assert [next(totals).key[0] for _ in range(3)][-1] == "TOPIC_PUT_NUMS"
    client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T3", 0), b"x")
    assert [total.key for total in totals] == [("TOPIC_PUT_SIZE", "T1"), ("TOPIC_PUT_SIZE", "T3")]


def test_topics_that_go_during_a_look_count_for_nothing(broker: ServedBroker) -> None:
    """Queues of a topic that is gone have no offset: -1 each."""
    client = broker.client()
    for topic in ("T1", "T3"):
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext(topic, 0), b"x")
    totals = broker.service.parts[Statistics]._counting._totals()
    assert [next(totals).key for _ in range(3)][-1] == ("TOPIC_PUT_NUMS", "T1")
    broker.memory.delete_topic("T3")
    assert [total.key for total in totals] == [("TOPIC_PUT_SIZE", "T1")]


def test_all_groups_are_told_with_what_they_have_not_consumed(broker: ServedBroker) -> None:
    client = broker.client()
    for _ in range(3):
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
        broker.advance(10)
    for group, offset in (("CG", 1), ("OTHER", 3)):
        broker.groups.ensure_group(SubscriptionGroupConfig(group), lambda error: None)
        broker.settle()
        ext = {"consumerGroup": group, "topic": "T1", "queueId": "0", "commitOffset": str(offset)}
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        broker.advance(1)
    answer = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert b'"consumeStatsList":[{"CG":[{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a",' in answer.body
    body = json.loads(to_standard_json(answer.body))
    assert [list(group) for group in body["consumeStatsList"]] == [["CG"], ["OTHER"]]
    assert (body["totalDiff"], body["totalInflightDiff"]) == (2, 0)
    ordered = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    assert json_body(ordered)["consumeStatsList"] == []


def test_progress_tells_when_what_was_consumed_last_was_stored(broker: ServedBroker) -> None:
    client = broker.client()
    broker.groups.ensure_group(SubscriptionGroupConfig("CG"), lambda error: None)
    stored_ms = []
    for _ in range(2):
        stored_ms.append(broker.memory.env.wall_ms())
        client.call(RequestCode.SEND_MESSAGE_V2, send_ext("T1", 0), b"x")
        broker.advance(10)
    for offset, expected in ((0, 0), (1, stored_ms[0]), (2, stored_ms[1])):
        ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": str(offset)}
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        broker.advance(1)
        told = client.call_from_disk(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T1"})
        assert decode_consume_stats(told.body)[MessageQueue("broker-a", 0, "T1")].last_timestamp == expected


def test_what_was_pulled_and_is_not_committed_is_in_flight(broker: ServedBroker) -> None:
    client, queue = broker.client(), MessageQueue("broker-a", 0, "T1")
    make_group(broker, "CG")
    for _ in range(5):
        client.send_message("T1")

    def told() -> tuple[int, object]:
        one = client.call_from_disk(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T1"})
        every = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        body = json.loads(to_standard_json(every.body))
        return decode_consume_stats(one.body)[queue].pull_offset, body["totalInflightDiff"]

    ext = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"}
    client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    broker.advance(1)
    assert told() == (1, 0)
    for offset, expected in ((0, (1, 0)), (3, (3, 2)), (99, (5, 4))):  # none beyond the end, whatever is asked for
        client.pull("T1", offset=offset)
        assert told() == expected
    client.is_open = False
    assert told() == (1, 0)
