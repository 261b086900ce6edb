"""Counts of messages stored and delivered, and the progress of groups, as mqadmin and dashboards show them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served_broker import FakeClient, ServedBroker, json_body, make_group, pull_ext, send_ext

from dledger_broker.features.statistics import samples
from dledger_broker.features.statistics.requests import Statistics
from dledger_broker.features.statistics.samples import PERIOD_S, Samples, Total
from dledger_broker.kernel import deliveries
from dledger_broker.kernel.deliveries import TopicSizes
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.consumers import decode_consume_stats
from dledger_remoting.fastjson import to_standard_json
from dledger_remoting.statistics import decode_topic_stats
from dledger_remoting.topics import MessageQueue

MINUTE, HOUR, DAY = 6, 360, 8_640
"""Number of looks in a minute, an hour and a day."""


def take(counted: Samples, now_ms: int, totals: list[Total]) -> int:
    """Look at all totals, and return the number of parts after which others could go on."""
    return sum(1 for _ in counted.look(now_ms, totals))


def test_a_sample_of_many_series_is_taken_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "LOOKED_AT_A_TURN", 2)
    counted = Samples()
    assert take(counted, 0, [Total(("A", str(number)), 1, 1) for number in range(5)]) == 2
    looking = counted.look(10_000, [Total(("A", str(number)), 3, 3) for number in range(3)])
    next(looking)
    assert counted.stats(("A", "4")) is not None, "as of before"
    assert next(looking, "done") == "done"
    assert counted.stats(("A", "4")) is None


def test_statistics_of_a_minute_an_hour_and_a_day_are_those_of_rocketmq() -> None:
    counted = Samples()
    key = ("TOPIC_PUT_NUMS", "T1")
    for look in range(2 * DAY + 1):
        take(counted, look * 10_000, [Total(key, 20 * look, 10 * look)])
    stats = counted.stats(key)
    assert stats is not None
    assert (stats.stats_minute.sum, stats.stats_minute.tps, stats.stats_minute.avgpt) == (20 * MINUTE, 2.0, 2.0)
    assert (stats.stats_hour.sum, stats.stats_hour.tps) == (20 * HOUR, 2.0)
    assert (stats.stats_day.sum, stats.stats_day.tps) == (20 * DAY, 2.0)


def test_absent_series_are_forgotten_and_the_number_of_series_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_SERIES", 2)
    counted = Samples()
    take(counted, 0, [Total(("A", name), 1, 1) for name in ("a", "b", "c")])
    assert [counted.stats(("A", name)) is not None for name in ("a", "b", "c")] == [True, True, False]
    take(counted, 10_000, [Total(("A", name), 1, 1) for name in ("b", "c")])
    assert [counted.stats(("A", name)) is not None for name in ("a", "b", "c")] == [False, True, True]
    take(counted, 20_000, [Total(("A", name), 1, 1) for name in ("new", "newer", "b", "c")])
    found = {name for name in ("b", "c", "new", "newer") if counted.stats(("A", name)) is not None}
    assert found == {"b", "c"}, "numbers that were sampled before keep their places"


def test_the_counts_of_a_recreated_topic_start_at_its_new_beginning() -> None:
    """1,000,000 messages and then 10 of a new topic of that name are not -999,990 messages."""
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


def test_topics_whose_bytes_are_counted_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAX_TOPICS", 1)
    counted = TopicSizes()
    for topic in ("first", "second", "first"):
        counted.count(topic, 100, 2)
    assert counted.by_topic == {"first": (200, 4)}
    counted.forget("first")
    counted.count("second", 5, 1)
    assert counted.by_topic == {"second": (5, 1)}


def test_bytes_of_a_turn_with_several_topics_are_counted_each_with_its_own(client: FakeClient) -> None:
    for topic, body in (("T1", b"x"), ("T2", b"y" * 100), ("T1", b"x")):
        client.send(RequestCode.SEND_MESSAGE_V2, send_ext(topic), body)
    client.broker.settle()
    sizes = client.broker.counters.sizes.by_topic
    assert (sizes["T1"][1], sizes["T2"][1]) == (2, 1)
    assert sizes["T2"][0] == sizes["T1"][0] // 2 + 99
    assert sum(size for size, _ in sizes.values()) == client.broker.counters.bytes_in


def asked(client: FakeClient, name: str, key: str) -> RemotingCommand:
    return client.call(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def is_absent(client: FakeClient, name: str, key: str) -> bool:
    answer = asked(client, name, key)
    text = f"The stats <{name}> <{key}> not exist"
    return (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, text)


def rates(client: FakeClient) -> tuple[float, float]:
    """Return the messages a second that T1 takes, and that CG gets of it."""
    taken = decode_topic_stats(client.call_from_disk(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T1"}).body)[1]
    return taken, progress(client)["consumeTps"]


def progress(client: FakeClient) -> dict[str, Any]:
    ext = {"consumerGroup": "CG", "topic": "T1"}
    found: dict[str, Any] = json.loads(to_standard_json(client.call_from_disk(RequestCode.GET_CONSUME_STATS, ext).body))
    return found


def commit(client: FakeClient, offset: int, group: str = "CG") -> None:
    ext = {"consumerGroup": group, "topic": "T1", "queueId": "0", "commitOffset": str(offset)}
    client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    client.broker.advance(1)


def told(client: FakeClient, name: str, key: str) -> dict[str, Any]:
    answer = asked(client, name, key)
    assert answer.code == ResponseCode.SUCCESS
    minute: dict[str, Any] = json_body(answer)["statsMinute"]
    return minute


def send_and_pull(client: FakeClient, messages: int, group: str = "CG") -> None:
    for _ in range(messages):
        client.send_message("T1", b"x")
    pulled = client.call_from_disk(RequestCode.PULL_MESSAGE, pull_ext("T1", 0, consumerGroup=group))
    assert pulled.code == ResponseCode.SUCCESS


OF_A_TOPIC = {"TOPIC_PUT_NUMS": "T1", "TOPIC_PUT_SIZE": "T1", "GROUP_GET_NUMS": "T1@CG", "GROUP_GET_SIZE": "T1@CG"}


@pytest.mark.parametrize("messages", [2, 40], ids=["fewer than before", "more than before"])
def test_a_topic_recreated_between_samples_is_counted_from_its_beginning(broker: ServedBroker, messages: int) -> None:
    client = broker.client()
    make_group(broker)
    broker.service.parts[Statistics].start()
    for _ in range(2):
        broker.advance(PERIOD_S)
        send_and_pull(client, 10)
    broker.advance(PERIOD_S)
    assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 10
    broker.memory.delete_topic("T1")
    broker.memory.create_topic("T1")
    assert is_absent(client, "TOPIC_PUT_NUMS", "T1")
    send_and_pull(client, messages)
    for _ in range(2):
        for name, key in OF_A_TOPIC.items():
            minute = told(client, name, key)
            assert (minute["sum"], minute["tps"]) == (0, 0.0), name
        assert rates(client) == (0.0, 0.0)
        broker.advance(PERIOD_S)
    send_and_pull(client, 1)
    broker.advance(PERIOD_S)
    assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 1


def test_statistics_of_a_topic_survive_the_installation_of_a_snapshot(client: FakeClient) -> None:
    client.broker.service.parts[Statistics].start()
    client.send_message("T1", b"x")
    client.broker.advance(PERIOD_S)
    for _ in range(3):
        client.send_message("T1", b"x")
    client.broker.memory.node.snapshot()
    client.broker.memory.node.restore()
    client.broker.advance(PERIOD_S)
    assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 3


def test_a_deleted_group_or_topic_has_no_statistics(client: FakeClient) -> None:
    for group in ("CG", "OTHER"):
        make_group(client.broker, group)
        send_and_pull(client, 1, group)
    client.broker.service.parts[Statistics].start()
    assert told(client, "GROUP_GET_NUMS", "T1@CG")["sum"] == 0
    client.broker.groups.delete_group("CG", lambda _: None)
    client.broker.settle()
    assert is_absent(client, "GROUP_GET_NUMS", "T1@CG")
    assert asked(client, "GROUP_GET_NUMS", "T1@OTHER").code == ResponseCode.SUCCESS
    client.broker.memory.delete_topic("T1")
    assert all(is_absent(client, name, key) for name, key in (OF_A_TOPIC | {"GROUP_GET_NUMS": "T1@OTHER"}).items())


def test_a_deleted_group_makes_room_for_another_group(broker: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "MAX_PAIRS", 1)
    client, names = broker.client(), ("GROUP_GET_NUMS", "SNDBCK_PUT_NUMS")
    broker.service.parts[Statistics].start()
    for group in ("first", "second"):
        make_group(broker, group)
        send_and_pull(client, 1, group)
        broker.counters.sent_back.count(group, "T1", 1, 1)
    for name in names:
        assert told(client, name, "T1@first")["sum"] == 0
        assert is_absent(client, name, "T1@second")
    broker.groups.delete_group("first", lambda _: None)
    broker.advance(PERIOD_S)
    send_and_pull(client, 1, "second")
    broker.counters.sent_back.count("second", "T1", 1, 1)
    assert [told(client, name, "T1@second")["sum"] for name in names] == [0, 0]


def test_system_groups_are_counted_without_being_created(client: FakeClient) -> None:
    client.broker.service.parts[Statistics].start()
    for _ in range(2):
        send_and_pull(client, 1, "CID_RMQ_SYS_ANY")
        client.broker.advance(PERIOD_S)
    assert told(client, "GROUP_GET_NUMS", "T1@CID_RMQ_SYS_ANY")["sum"] > 0


def test_statistics_beyond_the_limit_of_series_are_reported_as_absent(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 0 would say that nothing comes."""
    client.send_message("T1", b"x")
    monkeypatch.setattr(samples, "MAX_SERIES", 3)
    client.broker.service.parts[Statistics].start()
    client.send_message("T2", b"x")
    for _ in range(2):
        assert told(client, "TOPIC_PUT_NUMS", "T1")["sum"] == 0
        assert all(is_absent(client, name, "T2") for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"))
        client.broker.advance(PERIOD_S)


def test_stored_and_pulled_messages_are_counted_with_sizes_and_rates(broker: ServedBroker) -> None:
    client, cluster = broker.client(), broker.service.config.cluster
    make_group(broker)
    client.send_message("T1", b"x")
    client.pull("T1")
    broker.service.parts[Statistics].start()
    broker.advance(PERIOD_S)
    for _ in range(20):
        client.send_message("T1", b"x")
    assert client.pull("T1", offset=1).code == ResponseCode.SUCCESS
    broker.advance(PERIOD_S)
    sent, pulled = told(client, "TOPIC_PUT_NUMS", "T1"), told(client, "GROUP_GET_NUMS", "T1@CG")
    assert (sent["sum"], sent["tps"]) == (20, 1.0)
    assert (pulled["sum"], pulled["avgpt"]) == (20, 20.0)
    sent_bytes, pulled_bytes = told(client, "TOPIC_PUT_SIZE", "T1"), told(client, "GROUP_GET_SIZE", "T1@CG")
    assert sent_bytes["sum"] == pulled_bytes["sum"] > 20 * 90
    assert [told(client, name, cluster)["sum"] for name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS")] == [20, 20]
    assert rates(client) == (1.0, 1.0)
    for name, key in (("A", "B"), ("GROUP_GET_LATENCY", "T1@CG"), ("GROUP_GET_FROM_DISK_NUMS", "T1@CG")):
        assert is_absent(client, name, key)


def test_messages_since_the_last_sample_count_as_zero(broker: ServedBroker) -> None:
    """A dashboard that asks right behind a topic's first message must not hear that there are none."""
    client, cluster = broker.client(), broker.service.config.cluster
    make_group(broker)
    assert all(is_absent(client, name, key) for name, key in OF_A_TOPIC.items())
    client.send_message("T1", b"x")
    client.pull("T1")
    for name, key in (OF_A_TOPIC | {"BROKER_PUT_NUMS": cluster}).items():
        assert told(client, name, key)["sum"] == 0, name


def test_topics_made_or_deleted_during_a_sample_do_not_end_the_sample(client: FakeClient) -> None:
    """Each queue of a deleted topic has the offset -1."""
    client.send_message("T1", b"x")
    for change, expected in (
        (lambda: client.send_message("T3", b"x"), ["T1", "T3"]),
        (lambda: client.broker.memory.delete_topic("T3"), ["T1"]),
    ):
        totals = client.broker.service.parts[Statistics]._counting._totals()
        assert [next(totals).key for _ in range(3)][-1] == ("TOPIC_PUT_NUMS", "T1")
        change()
        assert [total.key for total in totals] == [("TOPIC_PUT_SIZE", topic) for topic in expected]


def test_all_groups_are_reported_with_their_lag(broker: ServedBroker) -> None:
    client = broker.client()
    for _ in range(3):
        client.send_message("T1", b"x")
        broker.advance(10)
    for group, offset in (("CG", 1), ("OTHER", 3)):
        make_group(broker, group)
        commit(client, offset, group)
    answer = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    assert b'"consumeStatsList":[{"CG":[{"consumeTps":0.0,"offsetTable":{{"brokerName":"broker-a",' in answer.body
    body = json.loads(to_standard_json(answer.body))
    assert [list(group) for group in body["consumeStatsList"]] == [["CG"], ["OTHER"]]
    assert (body["totalDiff"], body["totalInflightDiff"]) == (2, 0)
    ordered = client.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    assert json_body(ordered)["consumeStatsList"] == []


def test_progress_has_the_store_time_of_the_last_consumed_message(broker: ServedBroker) -> None:
    client, stored_ms = broker.client(), [0]
    make_group(broker)
    for _ in range(2):
        stored_ms.append(broker.memory.env.wall_ms())
        client.send_message("T1", b"x")
        broker.advance(10)
    for offset in (0, 1, 2):
        commit(client, offset)
        told = client.call_from_disk(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T1"})
        assert decode_consume_stats(told.body)[MessageQueue("broker-a", 0, "T1")].last_timestamp == stored_ms[offset]


def test_pulled_but_uncommitted_messages_count_as_in_flight(broker: ServedBroker) -> None:
    client, operator, queue = broker.client(), broker.client(), MessageQueue("broker-a", 0, "T1")
    make_group(broker)
    for _ in range(5):
        client.send_message("T1")

    def told() -> tuple[int, object]:
        one = operator.call_from_disk(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG", "topic": "T1"})
        every = operator.call_from_disk(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        body = json.loads(to_standard_json(every.body))
        return decode_consume_stats(one.body)[queue].pull_offset, body["totalInflightDiff"]

    commit(client, 1)
    assert told() == (1, 0)
    # none beyond the end, whatever offset is asked for
    for offset, expected in ((0, (1, 0)), (3, (3, 2)), (99, (5, 4))):
        client.pull("T1", offset=offset)
        assert told() == expected
    client.is_open = False
    assert told() == (1, 0)
