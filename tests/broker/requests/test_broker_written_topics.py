"""Topics that the broker alone writes and reads: no client stores, changes or sees anything there."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest
from served_broker import ServedBroker, send_ext

from dledger_broker.kernel.units import NewRecord
from dledger_broker.testing.environment import START_MS
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.topics import TopicConfig

TOPICS: Final = (
    "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_wheel_timer",
    "rmq_sys_anything",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_TRANS_anything",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
QUEUE: Final = {"queueId": "0"}
PULL: Final = {
    **QUEUE,
    "consumerGroup": "TOOLS_CONSUMER",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
}
READS: Final = {
    RequestCode.PULL_MESSAGE: PULL,
    RequestCode.LITE_PULL_MESSAGE: PULL,
    RequestCode.QUERY_MESSAGE: {"key": "K", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": str(1 << 60)},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {**QUEUE, "timestamp": "0"},
}
HIDDEN: Final = b"KEYS\x01K\x02UNIQ_KEY\x01U\x02"


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    """A broker that has the topics, with a record of its own in each."""
    for topic in TOPICS:
        broker.memory.create_topic(topic, 1)
        record = NewRecord(
            topic=topic, queue_id=0, body=b"hidden", properties=HIDDEN, born_ms=START_MS, born_host=bytes(8)
        )
        broker.memory.writer.write([record], done=lambda _: None)
        broker.settle()
        assert broker.memory.bodies(topic) == [b"hidden"]
    return broker


def test_they_can_be_neither_read_nor_searched(broker: ServedBroker) -> None:
    client = broker.client()
    for topic in TOPICS:
        for code, fields in READS.items():
            answer = client.call(code, {"topic": topic, **fields})
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b""), (topic, code)
            assert f"topic {topic} is the broker's own" in (answer.remark or "")


def test_how_much_waits_in_them_is_no_secret(broker: ServedBroker) -> None:
    client = broker.client()
    for topic in TOPICS:
        where = {"topic": topic, **QUEUE}
        bounds = [client.call(code, where).ext for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)]
        assert bounds == [{"offset": "0"}, {"offset": "1"}]


def test_their_records_are_no_messages_by_their_positions(broker: ServedBroker) -> None:
    for topic in TOPICS:
        queue = broker.memory.queue(topic)
        (position, _), *_ = broker.memory.reads.get_messages(queue, 0, 1, 1 << 20).runs
        answer = broker.client().call_from_disk(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(position)})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "can not find message by the offset" in (answer.remark or "")


def test_nothing_is_sent_to_them(broker: ServedBroker) -> None:
    client, end = broker.client(), broker.memory.log.end
    for topic in TOPICS:
        batch = encode_batch([BatchMessage(0, b"x", b"")])
        answers = [
            client.send_message(topic),
            client.call(RequestCode.SEND_BATCH_MESSAGE, send_ext(topic, 0, "", m="true"), batch),
        ]
        for answer in answers:
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "written by the broker itself" in (answer.remark or "")
    assert broker.memory.log.end == end


def test_they_are_neither_made_nor_changed_nor_deleted(broker: ServedBroker) -> None:
    client, end = broker.client(), broker.memory.log.end
    example = {
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    for topic in (*TOPICS, "rmq_sys_new", "RMQ_SYS_TRANS_new"):
        several = msgspec.json.encode({"topicConfigList": [TopicConfig("passes"), TopicConfig(topic)]})
        answers = [
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": topic, **example}),
            client.call(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, several),
            client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}),
        ]
        assert [answer.code for answer in answers] == [ResponseCode.INVALID_PARAMETER] * 3
        assert all("conflict with system topic" in (answer.remark or "") for answer in answers)
    assert broker.memory.log.end == end
