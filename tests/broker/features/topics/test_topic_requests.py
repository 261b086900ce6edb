"""Requests about topics, and topics with write aliases."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from served_broker import FakeClient, ServedBroker, assert_refused, json_body, topic_ext

from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.write_aliases import AliasedTopics
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE, TopicConfig

TOPIC = topic_ext("T2", "+message.type=FIFO", writeQueueNums="2")


def test_a_topic_is_created_shown_changed_and_deleted(broker: ServedBroker, client: FakeClient) -> None:
    assert client.call(17, TOPIC).code == 0
    shown = json_body(client.call(351, {"topic": "T2"}))
    numbers = {"readQueueNums": 4, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
    others = {"topicFilterType": "SINGLE_TAG", "order": False, "attributes": {"message.type": "FIFO"}}
    assert shown == {"topicName": "T2", **numbers, **others}
    assert client.call(17, {**TOPIC, "perm": "4", "attributes": "-message.type,+a=b"}).code == 0
    config = broker.memory.machine.state.topics["T2"].config
    assert (config.perm, config.attributes) == (4, {"a": "b"})
    assert client.call(215, {"topic": "T2"}).code == 0
    assert client.call(351, {"topic": "T2"}).code == 17
    assert client.call(215, {"topic": "T2"}).code == 0


def test_several_topics_are_created_at_once(client: FakeClient) -> None:
    assert put_list(client, {"topicName": "A"}, {"topicName": "B", "perm": 4}).code == 0
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
        ({"attributes": "+message.type=fifo"}, 29, "not one of UNSPECIFIED, NORMAL, FIFO"),
    ],
)
def test_a_bad_topic_is_refused(client: FakeClient, fields: dict[str, str], code: int, text: str) -> None:
    assert_refused(client.call(17, {**TOPIC, **fields}), code, text)


@pytest.mark.parametrize("name", ["queue.type", "+queue.type", "cleanup.policy", "+cleanup.policy"])
def test_a_list_with_an_unsupported_storage_attribute_creates_no_topic(client: FakeClient, name: str) -> None:
    answer = put_list(client, {"topicName": "Good"}, {"topicName": "Odd", "attributes": {name: "other"}})
    assert_refused(answer, 29, f"{name.removeprefix('+')}=other is not supported")
    assert not {"Good", "Odd"} & set(client.broker.memory.machine.state.topics)


def test_attributes_that_name_the_actual_storage_are_accepted(client: FakeClient) -> None:
    for attributes in ("+queue.type=SimpleCQ,+cleanup.policy=DELETE", "-queue.type,-cleanup.policy"):
        assert client.call(17, {**TOPIC, "attributes": attributes}).code == 0
    named = {"topicName": "T3", "attributes": {"+queue.type": "SimpleCQ", "-cleanup.policy": ""}}
    assert put_list(client, named).code == 0
    assert client.broker.memory.machine.state.topics["T3"].config.attributes == {"queue.type": "SimpleCQ"}


def put_list(client: FakeClient, *configs: dict[str, object]) -> RemotingCommand:
    return client.call(18, {}, msgspec.json.encode({"topicConfigList": configs}))


def test_a_list_changes_named_attributes_and_keeps_other_attributes(client: FakeClient) -> None:
    """A repeated send to an idempotent topic is stored once, whatever tool has changed the topic's queues since."""
    assert client.call(17, {**TOPIC, "attributes": "+idempotent=true,+write.aliases=true,+a=b"}).code == 0
    assert put_list(client, {"topicName": "T2", "attributes": {"+c": "d", "-a": ""}}, {"topicName": "T3"}).code == 0
    config = client.broker.memory.machine.state.topics["T2"].config
    assert config.attributes == {"idempotent": "true", "write.aliases": "true", "c": "d"}
    assert (config.write_queue_nums, config.order) == (16, False)
    assert put_list(client, {"topicName": "T2"}).code == 0
    assert client.broker.memory.machine.state.topics["T2"].config == config


@pytest.mark.parametrize(("attributes", "text"), [({"+": "x"}, "no key"), ({"+a": "1", "-a": ""}, "'a' twice")])
def test_senseless_attributes_of_a_list_are_refused(client: FakeClient, attributes: dict[str, str], text: str) -> None:
    assert_refused(put_list(client, {"topicName": "T2", "attributes": attributes}), 29, text)


def test_the_last_entry_of_a_topic_in_a_list_counts(broker: ServedBroker, client: FakeClient) -> None:
    configs = [{"topicName": "T2", "readQueueNums": number, "writeQueueNums": number} for number in range(1, 9)]
    entries = len(broker.memory.log.entries)
    assert put_list(client, *configs).code == 0
    assert broker.memory.machine.state.topics["T2"].queue_count == 8
    assert len(broker.memory.log.entries) == entries + 1


def test_a_text_of_attributes_above_the_length_limit_is_refused(client: FakeClient) -> None:
    """A change of a few bytes takes hundreds of bytes, and a request may have 16 MB."""
    assert client.call(17, {**TOPIC, "attributes": "+a=b,-a," * 3_000}).code == 0
    assert_refused(client.call(17, {**TOPIC, "attributes": "+a=b,-a," * 30_000}), 29, "240000 characters")


def test_attributes_do_not_grow_from_change_to_change(client: FakeClient) -> None:
    for attributes, code in (("+a=", 0), ("+b=", 29), ("-a,+b=", 0)):
        assert client.call(17, {**TOPIC, "attributes": attributes + "x" * 4000}).code == code


@pytest.mark.parametrize("topic", ["%RETRY%CG+orders", "%RETRY%CG", "%DLQ%CG", "of an earlier build"])
def test_an_existing_topic_of_any_name_can_be_deleted(client: FakeClient, topic: str) -> None:
    client.broker.memory.create_topic(topic)
    assert client.call(215, {"topic": topic}).code == 0
    assert topic not in client.broker.memory.machine.state.topics
    if topic == "%RETRY%CG+orders":
        assert client.call(215, {"topic": topic}).code == 0, "again"


def test_deleting_a_system_topic_or_an_invalid_name_is_refused(client: FakeClient) -> None:
    system = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
    for topic in ("", " ", *system, "a+b", "%RETRY%CG+", "%RETRY%+orders", "%RETRY%CG+or+ders"):
        assert client.call(215, {"topic": topic}).code == 29, topic


# ---- write aliases: by an attribute or by default, and never where a queue or its order matters


ON, OFF = {WRITE_ALIASES_ATTRIBUTE: "true"}, {WRITE_ALIASES_ATTRIBUTE: "false"}


def aliased(*, by_default: bool = False) -> AliasedTopics:
    config = BrokerConfig(broker_group="b", node_id="n0", data_dir=Path("unused"), write_aliases=by_default)
    return AliasedTopics(config)


@pytest.mark.parametrize(
    ("attributes", "by_default", "expected"),
    [
        ({}, False, False),
        ({}, True, True),
        (ON, False, True),
        (OFF, True, False),
        (ON, True, True),
        (OFF, False, False),
    ],
)
def test_the_alias_attribute_of_a_topic_overrides_the_configuration(
    attributes: dict[str, str], by_default: bool, expected: bool
) -> None:
    topics = aliased(by_default=by_default)
    topic = TopicConfig("T1", 4, 4, attributes=attributes)
    assert topics.has(topic) is expected
    told = topics.with_aliases(topic)
    assert (told.attributes.get(WRITE_ALIASES_ATTRIBUTE) == "true") is expected
    assert (told == topic) or by_default


@pytest.mark.parametrize(
    "topic",
    [
        TopicConfig("T1", 4, 4, order=True),
        TopicConfig("T1", 4, 4, attributes={"message.type": "FIFO"}),
        TopicConfig("T1", 4, 1),
        *(
            TopicConfig(name, 4, 4)
            for name in (
                "%RETRY%g", "%DLQ%g", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC",
                "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster", "b", "DefaultCluster_REPLY_TOPIC", "BenchmarkTest",
            )
        ),
    ],
    ids=lambda topic: topic.topic_name + (" ordered" if topic.order else "") + topic.attributes.get("message.type", ""),
)  # fmt: skip
def test_ordered_small_and_system_topics_never_have_aliases(topic: TopicConfig) -> None:
    topics = aliased(by_default=True)
    assert topics.has(TopicConfig("T1", 4, 4, attributes={"message.type": "NORMAL"}))
    assert not topics.has(topic)
    with_attribute = msgspec.structs.replace(topic, attributes=topic.attributes | ON)
    assert not topics.has(with_attribute)
    assert topics.with_aliases(with_attribute).attributes == topic.attributes | OFF


@pytest.mark.parametrize(("value", "code"), [("true", 0), ("false", 0), ("yes", ResponseCode.INVALID_PARAMETER)])
def test_the_alias_attribute_takes_only_true_and_false(broker: ServedBroker, value: str, code: int) -> None:
    ext = topic_ext("T1", f"+{WRITE_ALIASES_ATTRIBUTE}={value}")
    answer = broker.client().call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert_refused(answer, code, *(["set it to true or false"] if code else []))
