"""Requests of every code with fields and bodies of all kinds: what is refused says why, and has changed nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served_broker import FakeClient, ServedBroker, make_served_broker, pull_ext, send_ext

from dledger_broker.config import BrokerConfig
from dledger_broker.features import FEATURES
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from tests.broker.toy import FEATURE

CONFIG: Final = BrokerConfig(
    broker_group="broker-a",
    node_id=NODE_ID,
    data_dir=Path("unused"),
    max_message_bytes=64 << 10,
    auto_create_topic=False,
)
"""Sends make no topic: it would be there before the rest of a send is looked at, as RocketMQ has it."""
QUEUE: Final = {"topic": "T1", "queueId": "0"}
OFFSET: Final = {"consumerGroup": "CG", **QUEUE}
PIN: Final = {"name": "job", "position": "0", "leaseMillis": "60000"}
TOPIC: Final = {
    "topic": "T2",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}
LONG_SEND: Final = {
    "producerGroup": "PG",
    "topic": "T1",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "0",
    "flag": "0",
}
FIELDS: Final[dict[int, dict[str, str]]] = {
    RequestCode.SEND_MESSAGE: LONG_SEND,
    RequestCode.SEND_MESSAGE_V2: send_ext("T1"),
    RequestCode.SEND_BATCH_MESSAGE: send_ext("T1", m="true"),
    RequestCode.PULL_MESSAGE: pull_ext("T1"),
    RequestCode.LITE_PULL_MESSAGE: pull_ext("T1"),
    RequestCode.QUERY_MESSAGE: {"topic": "T1", "key": "K", "maxNum": "3", "beginTimestamp": "0", "endTimestamp": "9"},
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": "0"},
    RequestCode.QUERY_CONSUMER_OFFSET: OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET: {**OFFSET, "commitOffset": "1"},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {**QUEUE, "timestamp": "0"},
    RequestCode.UPDATE_AND_CREATE_TOPIC: TOPIC,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": "CG"},
    RequestCode.DELETE_SUBSCRIPTION_GROUP: {"groupName": "CG"},
    RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG: {"group": "CG"},
    RequestCode.PIN_LOG: PIN,
    RequestCode.UNPIN_LOG: PIN,
    RequestCode.READ_PLAN: {"roles": "leader"},
    RequestCode.READ_RANGE: {"roles": "leader", "start": "0", "end": "100", "pin": "job"},
}
"""What a request of the code says that is well-formed; of all others that a queue's would."""
NAMES: Final = sorted(
    {name for fields in FIELDS.values() for name in fields} | {"properties", "subscription", "i", "j"}
)
VALUES: Final = st.one_of(
    st.sampled_from(["", " ", "0", "-1", "1", "2147483648", "-9223372036854775809", "NaN", "1e3", "true", "null"]),
    st.sampled_from(["T1", "absent", "CG", "%RETRY%CG", "%DLQ%CG", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"]),
    st.sampled_from(["DELAY\x013\x02", "REAL_TOPIC\x01T9\x02POP_CK\x01x", "\x01", "\x02", "x" * 40_000, "a b||c"]),
    st.integers(-(1 << 66), 1 << 66).map(str),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
BATCH: Final = encode_batch([BatchMessage(0, b"x", b"TAGS\x01t\x02"), BatchMessage(1, b"", b"")])
BODIES: Final = st.one_of(
    st.sampled_from([b"", b"{}", b"[]", b"null", b"{" * 3000, b"x" * 70_000, BATCH, BATCH[:-1]]),
    st.sampled_from([b'{"topicConfigList":[{"topicName":"T3"}]}', b'{"groupName":"CG"}', b'{"clientID":"c"}']),
    st.sampled_from([b'{"groupName":1}', b'{"clientID":"c","consumerDataSet":[{}]}', b'{"topicConfigList":[{}]}']),
    st.binary(max_size=60),
)
ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Codes that refuse nothing."""


def served() -> ServedBroker:
    """A broker that has topic T1 with some messages."""
    broker = make_served_broker(CONFIG, BrokerInMemory(features=(*FEATURES, FEATURE)))
    broker.memory.create_topic("T1")
    client = broker.client()
    for number in range(3):
        client.send_message("T1", b"%d" % number, properties="KEYS\x01K\x02")
    broker.settle()
    return broker


async def answered(
    client: FakeClient, code: int, ext: dict[str, str], body: bytes, serialize_type: int
) -> RemotingCommand:
    """The answer to a request, which may wait for the disk or for a message that does not come."""
    broker = client.broker
    opaque = client.send(code, ext, body, serialize_type=serialize_type)
    for _ in range(200):
        broker.settle()
        await asyncio.sleep(0)
        if client.has_answer(opaque):
            return client.answered(opaque)
        broker.advance(0.5)
    raise AssertionError(f"{code} {ext} is not answered")


CODES: Final = sorted(served().service.parts.routes())


@pytest.mark.parametrize("code", CODES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_refused_says_why_and_has_changed_nothing(code: int, data: st.DataObject) -> None:
    broker = served()
    client, machine = broker.client(), broker.memory.machine
    ext = dict(FIELDS.get(code, {**QUEUE, "consumerGroup": "CG"}))
    names = st.sampled_from(sorted(ext))
    for name in data.draw(st.lists(names, max_size=1), "taken out"):
        del ext[name]
    ext |= data.draw(st.dictionaries(st.one_of(names, st.sampled_from(NAMES)), VALUES, max_size=3), "put in")
    body, serialize_type = data.draw(BODIES, "body"), data.draw(st.sampled_from([0, 1]), "serializer")
    before = (machine.digest(), broker.memory.log.end)
    made = set(machine.state.topics)
    answer = asyncio.run(answered(client, code, ext, body, serialize_type))
    if answer.code not in ANSWERS:
        assert answer.remark
        assert answer.body == b""
        assert answer.code in set(ResponseCode)
        assert "Traceback" not in answer.remark
        assert "Error(" not in answer.remark
        assert (machine.digest(), broker.memory.log.end) == before, (answer, set(machine.state.topics) - made)
