"""Replies at their ports: pushed to the client that waits, and what a replier is told of it."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker

from dledger_broker.features.replies.requests import ANSWERED_WITHIN_S
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand
from dledger_remoting.headers import PushReplyHeader, SendMessageHeader, decode_ext, encode_ext
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.properties import format_properties, parse_properties

REQUESTER = "10.0.0.9@77"
TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSHED = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def connected(broker: ServedBroker) -> FakeClient:
    """The requester, which has sent a heartbeat."""
    broker.memory.create_topic(TOPIC, 1)
    client = broker.client("requester")
    heartbeat = encode_heartbeat(HeartbeatData(REQUESTER, [ProducerData("askers")], []))
    assert client.call(RequestCode.HEART_BEAT, {}, heartbeat).code == 0
    return client


@pytest.fixture
def requester(broker: ServedBroker) -> FakeClient:
    return connected(broker)


def reply_header(properties: dict[str, str] | None = None, **fields: object) -> SendMessageHeader:
    own = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": REQUESTER, "MSG_TYPE": "reply"}
    return SendMessageHeader(
        **{
            "producer_group": "repliers",
            "topic": TOPIC,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": 5,
            "flag": 7,
            "properties": format_properties(own if properties is None else properties),
            **fields,
        }
    )


def send(client: FakeClient, body: bytes = b"the answer", *, oneway: bool = False, **fields: object) -> int:
    ext = reply_header(**fields).encode_letters()
    opaque = client.send(RequestCode.SEND_REPLY_MESSAGE_V2, ext, body, oneway=oneway)
    client.broker.settle()
    return opaque


def acknowledge(requester: FakeClient, code: int = 0, remark: str | None = None) -> None:
    """The requester says that it has what was pushed last."""
    answer = RemotingCommand(code, opaque=len(requester.pushed), flag=FLAG_RESPONSE, remark=remark)
    requester.broker.service.relay.take_answer(requester.key, answer)
    requester.broker.settle()


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_goes_to_its_requester_who_says_so_before_the_replier_hears_of_it(
    broker: ServedBroker, client: FakeClient, requester: FakeClient, code: int
) -> None:
    header = reply_header()
    ext = encode_ext(header) if code == RequestCode.SEND_REPLY_MESSAGE else header.encode_letters()
    opaque = client.send(code, ext, b"the answer")
    broker.settle()
    [(pushed_code, pushed_ext)] = requester.pushed
    assert (pushed_code, requester.pushed_bodies) == (PUSHED, [b"the answer"])
    pushed = decode_ext(PushReplyHeader, pushed_ext)
    assert (pushed.topic, pushed.producer_group, pushed.flag, pushed.born_timestamp) == (TOPIC, "repliers", 7, 5)
    properties = parse_properties(pushed.properties or "")
    assert properties.pop("PUSH_REPLY_TIME") == str(broker.memory.env.wall_ms())
    assert properties == {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": REQUESTER, "MSG_TYPE": "reply"}
    assert not client.has_answer(opaque)
    acknowledge(requester)
    answer = client.answered(opaque)
    assert (answer.code, answer.ext) == (0, {"msgId": "0", "queueId": "0", "queueOffset": "0"})
    assert broker.memory.bodies(TOPIC) == [], "nothing is stored"


def test_a_replier_is_told_that_its_requester_is_not_there(client: FakeClient, requester: FakeClient) -> None:
    opaque = send(client, properties={"REPLY_TO_CLIENT": "10.0.0.1@1"})
    refused = client.answered(opaque)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "channel of <10.0.0.1@1> not found" in (refused.remark or "")
    assert "outcome" not in refused.ext
    assert requester.pushed == []


def test_a_requester_that_says_nothing_may_have_the_reply(
    broker: ServedBroker, client: FakeClient, requester: FakeClient
) -> None:
    opaque = send(client)
    broker.advance(ANSWERED_WITHIN_S - 0.1)
    assert not client.has_answer(opaque)
    broker.advance(0.2)
    assert client.answered(opaque).ext["outcome"] == "unknown"


def test_a_requester_that_goes_may_have_the_reply(
    broker: ServedBroker, client: FakeClient, requester: FakeClient
) -> None:
    opaque = send(client)
    broker.service.channel_lost(requester)
    broker.settle()
    assert client.answered(opaque).ext["outcome"] == "unknown"


def test_a_requester_that_refuses_is_quoted(client: FakeClient, requester: FakeClient) -> None:
    opaque = send(client)
    acknowledge(requester, 1, "nobody waits")
    refused = client.answered(opaque)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "code 1, nobody waits" in (refused.remark or "")


def test_max_relayed_calls_limits_replies_that_wait(make_broker: MakeBroker) -> None:
    broker = make_broker(max_relayed_calls=1)
    client, requester = broker.client(), connected(broker)
    waiting, refused = send(client), send(client)
    assert client.answered(refused).code == ResponseCode.SYSTEM_BUSY
    assert "max_relayed_calls" in (client.answered(refused).remark or "")
    assert broker.counters.max_relayed_calls == 1
    acknowledge(requester)
    assert client.answered(waiting).code == 0


def test_a_oneway_reply_is_pushed_and_not_answered(client: FakeClient, requester: FakeClient) -> None:
    send(client, oneway=True)
    assert len(requester.pushed) == 1
    acknowledge(requester)
    assert (client.settled, client.answers) == (1, [])


@pytest.mark.parametrize(
    ("fields", "body", "code", "text"),
    [
        ({"properties": {}}, b"x", 1, "reply message properties[REPLY_TO_CLIENT] is null"),
        ({"topic": "missing"}, b"x", 17, "topic missing does not exist"),
        ({"topic": ""}, b"x", 29, "the topic name is empty"),
        ({"queue_id": 9}, b"x", 29, "queue"),
        ({}, b"x" * (4 << 20) + b"x", 13, "the reply's body: 4194305 bytes"),
        ({"properties": {"a": "b" * 40_000}}, b"x", 13, "the reply's properties: 40003 bytes"),
    ],
)
def test_a_wrong_reply_is_refused_with_a_text(
    client: FakeClient, requester: FakeClient, fields: dict[str, object], body: bytes, code: int, text: str
) -> None:
    refused = client.answered(send(client, body, **fields))
    assert refused.code == code
    assert text in (refused.remark or "")
    assert requester.pushed == []


def test_a_negative_queue_is_any(client: FakeClient, requester: FakeClient) -> None:
    opaque = send(client, queue_id=-1)
    acknowledge(requester)
    assert client.answered(opaque).ext["queueId"] == "0"
