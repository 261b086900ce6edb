"""Which topics have write aliases: by their attribute or by default, and never where a queue or its order matters."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.write_aliases import AliasedTopics
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE, TopicConfig
from tests.broker.served_broker import ServedBroker

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
def test_the_attribute_counts_and_without_one_the_configuration(
    attributes: dict[str, str], by_default: bool, expected: bool
) -> None:
    topics = aliased(by_default=by_default)
    topic = TopicConfig("T1", 4, 4, attributes=attributes)
    assert topics.has(topic) is expected
    told = topics.told(topic)
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
def test_some_topics_never_have_them(topic: TopicConfig) -> None:
    topics = aliased(by_default=True)
    assert topics.has(TopicConfig("T1", 4, 4, attributes={"message.type": "NORMAL"}))
    assert not topics.has(topic)
    with_attribute = msgspec.structs.replace(topic, attributes=topic.attributes | ON)
    assert not topics.has(with_attribute)
    assert topics.told(with_attribute).attributes == topic.attributes | OFF


@pytest.mark.parametrize(("value", "code"), [("true", 0), ("false", 0), ("yes", ResponseCode.INVALID_PARAMETER)])
def test_the_attribute_takes_two_values(broker: ServedBroker, value: str, code: int) -> None:
    ext = {
        "topic": "T1", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "attributes": f"+{WRITE_ALIASES_ATTRIBUTE}={value}",
    }  # fmt: skip
    answer = broker.client().call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert answer.code == code, answer.remark
    if code:
        assert "set it to true or false" in (answer.remark or "")
