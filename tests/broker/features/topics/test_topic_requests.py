"""Requests about topics."""

from __future__ import annotations

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker, json_body

from dledger_broker.features.topics.configuration import Asked
from dledger_remoting.command import RemotingCommand
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.topics import TopicConfig

TOPIC = {
    "topic": "T2",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "attributes": "+message.type=FIFO",
}


def test_a_topic_is_created_shown_changed_and_deleted(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(17, TOPIC).code == 0
    shown = json_body(client.call(351, {"topic": "T2"}))
    assert shown == {
        "topicName": "T2",
        "readQueueNums": 4,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {"message.type": "FIFO"},
    }
    assert client.call(17, {**TOPIC, "perm": "4", "attributes": "-message.type,+a=b"}).code == 0
    config = broker.memory.machine.state.topics["T2"].config
    assert (config.perm, config.attributes) == (4, {"a": "b"})
    assert client.call(215, {"topic": "T2"}).code == 0
    assert client.call(351, {"topic": "T2"}).code == 17
    assert client.call(215, {"topic": "T2"}).code == 0


def test_several_topics_are_created_at_once(client: FakeClient) -> None:
    body = b'{"topicConfigList":[{"topicName":"A"},{"topicName":"B","perm":4}]}'
    assert client.call(18, {}, body).code == 0
    table = json_body(client.call(21))
    assert isinstance(table, dict)
    assert {"A", "B", "T1"} <= set(table["topicConfigTable"])
    assert table["dataVersion"]["stateVersion"] == 1


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"topic": ""}, 29, "empty"),
        ({"topic": "TBW102"}, 29, "system topic"),
        ({"topic": "x" * 128}, 29, "127"),
        ({"readQueueNums": "0"}, 29, "readQueueNums 0"),
        ({"writeQueueNums": "65537"}, 29, "65536"),
        ({"perm": "8"}, 29, "perm 8"),
        ({"perm": "rw"}, 1, "perm"),
        ({"attributes": "message.type"}, 29, "+key=value"),
        ({"attributes": "+a=" + "x" * 4096}, 29, "attributes have 4097 bytes"),
        ({"topicFilterType": "x" * 1_000_000}, 29, "SINGLE_TAG, MULTI_TAG"),
        ({"topic": "%LMQ%T2"}, 29, "light message queue"),
        ({"attributes": "+queue.type=BatchCQ"}, 29, "set it to SimpleCQ"),
        ({"attributes": "+queue.type=RocksDBCQ"}, 29, "set it to SimpleCQ"),
        ({"attributes": "+cleanup.policy=COMPACTION"}, 29, "set it to DELETE"),
    ],
)
def test_a_bad_topic_is_refused(client: FakeClient, fields: dict[str, str], code: int, text: str) -> None:
    answer = client.call(17, {**TOPIC, **fields})
    assert answer.code == code
    assert text in (answer.remark or "")


@pytest.mark.parametrize("name", ["queue.type", "+queue.type", "cleanup.policy", "+cleanup.policy"])
def test_a_list_with_a_topic_that_is_to_be_stored_in_another_way_makes_none(
    broker: ServedBroker, client: FakeClient, name: str
) -> None:
    configs = [{"topicName": "Good"}, {"topicName": "Odd", "attributes": {name: "other"}}]
    answer = client.call(18, {}, msgspec.json.encode({"topicConfigList": configs}))
    assert (answer.code, f"{name.removeprefix('+')}=other is not supported" in (answer.remark or "")) == (29, True)
    assert not {"Good", "Odd"} & set(broker.memory.machine.state.topics)


def test_attributes_may_say_how_topics_are_stored_here(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(17, {**TOPIC, "attributes": "+queue.type=SimpleCQ,+cleanup.policy=DELETE"}).code == 0
    assert client.call(17, {**TOPIC, "attributes": "-queue.type,-cleanup.policy"}).code == 0
    configs = [{"topicName": "T3", "attributes": {"+queue.type": "SimpleCQ", "-cleanup.policy": ""}}]
    assert client.call(18, {}, msgspec.json.encode({"topicConfigList": configs})).code == 0
    assert broker.memory.machine.state.topics["T3"].config.attributes == {"queue.type": "SimpleCQ"}


def put_list(client: FakeClient, *configs: dict[str, object]) -> RemotingCommand:
    return client.call(18, {}, msgspec.json.encode({"topicConfigList": configs}))


def test_a_list_changes_the_attributes_that_it_names_and_keeps_the_others(client: FakeClient) -> None:
    """A repeated send to a topic that is idempotent is stored once, whatever tool changed its queues since."""
    assert client.call(17, {**TOPIC, "attributes": "+idempotent=true,+write.aliases=true,+a=b"}).code == 0
    assert put_list(client, {"topicName": "T2", "attributes": {"+c": "d", "-a": ""}}, {"topicName": "T3"}).code == 0
    config = client.broker.memory.machine.state.topics["T2"].config
    assert config.attributes == {"idempotent": "true", "write.aliases": "true", "c": "d"}
    assert (config.write_queue_nums, config.order) == (16, False)
    assert put_list(client, {"topicName": "T2"}).code == 0
    assert client.broker.memory.machine.state.topics["T2"].config == config


def test_attributes_do_not_grow_from_list_to_list_and_nothing_of_such_a_list_is_taken(client: FakeClient) -> None:
    assert put_list(client, {"topicName": "T2", "attributes": {"+a": "x" * 4000}}).code == 0
    answer = put_list(client, {"topicName": "T3"}, {"topicName": "T2", "perm": 4, "attributes": {"+b": "x" * 4000}})
    assert (answer.code, "the limit is 4096" in (answer.remark or "")) == (29, True)
    assert "T3" not in client.broker.memory.machine.state.topics
    assert client.broker.memory.machine.state.topics["T2"].config.perm == 6
    assert put_list(client, {"topicName": "T2", "attributes": {"-a": "", "+b": "x" * 4000}}).code == 0


def test_what_no_longer_fits_when_its_turn_comes_is_refused_and_changes_nothing() -> None:
    refusals: list[InvalidParameter] = []
    asked = Asked(TopicConfig("T2", perm=4), [("b", "x" * 4000)])
    known = TopicConfig("T2", attributes={"a": "x" * 4000})
    assert asked.applied_to(refusals, known) == known
    assert len(refusals) == 1


@pytest.mark.parametrize(("attributes", "text"), [({"+": "x"}, "no key"), ({"+a": "1", "-a": ""}, "'a' twice")])
def test_attributes_of_a_list_that_make_no_sense_are_refused(
    client: FakeClient, attributes: dict[str, str], text: str
) -> None:
    answer = put_list(client, {"topicName": "T2", "attributes": attributes})
    assert (answer.code, text in (answer.remark or "")) == (29, True)


def test_of_a_topic_that_a_list_names_twice_the_last_form_counts(broker: ServedBroker, client: FakeClient) -> None:
    configs = [{"topicName": "T2", "readQueueNums": number, "writeQueueNums": number} for number in range(1, 9)]
    entries = len(broker.memory.log.entries)
    assert client.call(18, {}, msgspec.json.encode({"topicConfigList": configs})).code == 0
    assert broker.memory.machine.state.topics["T2"].queue_count == 8
    assert len(broker.memory.log.entries) == entries + 1


def test_a_text_of_attributes_that_no_topic_can_hold_is_not_even_read(client: FakeClient) -> None:
    """Each change of a few bytes takes hundreds, and a request may be of 16 MB."""
    assert client.call(17, {**TOPIC, "attributes": "+a=b,-a," * 3_000}).code == 0
    answer = client.call(17, {**TOPIC, "attributes": "+a=b,-a," * 30_000})
    assert answer.code == 29
    assert "240000 characters" in (answer.remark or "")


def test_attributes_do_not_grow_from_change_to_change(client: FakeClient) -> None:
    assert client.call(17, {**TOPIC, "attributes": "+a=" + "x" * 4000}).code == 0
    assert client.call(17, {**TOPIC, "attributes": "+b=" + "x" * 4000}).code == 29
    assert client.call(17, {**TOPIC, "attributes": "-a,+b=" + "x" * 4000}).code == 0


@pytest.mark.parametrize("topic", ["%RETRY%CG+orders", "%RETRY%CG", "%DLQ%CG", "of an earlier build"])
def test_a_topic_that_is_there_can_be_deleted_whatever_its_name(
    broker: ServedBroker, client: FakeClient, topic: str
) -> None:
    broker.memory.create_topic(topic)
    assert client.call(215, {"topic": topic}).code == 0
    assert topic not in broker.memory.machine.state.topics


def test_the_deletion_of_a_retry_topic_can_be_repeated(client: FakeClient) -> None:
    assert client.call(215, {"topic": "%RETRY%CG+orders"}).code == 0


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("", 29),
        (" ", 29),
        ("SCHEDULE_TOPIC_XXXX", 29),
        ("rmq_sys_wheel_timer", 29),
        ("a+b", 29),
        ("%RETRY%CG+", 29),
        ("%RETRY%+orders", 29),
        ("%RETRY%CG+or+ders", 29),
    ],
)
def test_neither_a_system_topic_is_deleted_nor_what_can_be_none(client: FakeClient, topic: str, code: int) -> None:
    assert client.call(215, {"topic": topic}).code == code
