"""Replies: they are pushed to the waiting client, whichever node it is connected to, and the replier is told."""

from __future__ import annotations

import pytest
from served_broker import FakeClient, MakeBroker, ServedBroker, assert_refused, submit

from dledger_broker.features.replies.requests import ANSWERED_WITHIN_S
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand
from dledger_remoting.headers import PushReplyHeader, SendMessageHeader, decode_ext, encode_ext
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.properties import format_properties, parse_properties
from dledger_sim.brokers.schedules.brokers import TOPIC as SIMULATED_TOPIC
from dledger_sim.brokers.schedules.brokers import Brokers

REQUESTER = "10.0.0.9@77"
TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSHED = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


def connected(broker: ServedBroker) -> FakeClient:
    """Return the requester, which has sent a heartbeat."""
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
    text = format_properties(own if properties is None else properties)
    queue = {"topic": TOPIC, "default_topic": "TBW102", "default_topic_queue_nums": 4, "queue_id": 0}
    numbers = {"sys_flag": 0, "born_timestamp": 5, "flag": 7}
    return SendMessageHeader(**{"producer_group": "repliers", "properties": text, **queue, **numbers, **fields})


def send(client: FakeClient, body: bytes = b"the answer", *, oneway: bool = False, **fields: object) -> int:
    ext = reply_header(**fields).encode_letters()
    opaque = client.send(RequestCode.SEND_REPLY_MESSAGE_V2, ext, body, oneway=oneway)
    client.broker.settle()
    return opaque


def acknowledge(requester: FakeClient, code: int = 0, remark: str | None = None) -> None:
    """Have the requester acknowledge what was pushed last."""
    answer = RemotingCommand(code, opaque=len(requester.pushed), flag=FLAG_RESPONSE, remark=remark)
    requester.broker.service.relay.take_answer(requester.key, answer)
    requester.broker.settle()


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_replier_is_answered_after_the_requester_has_acknowledged_the_reply(
    broker: ServedBroker, client: FakeClient, requester: FakeClient, code: int
) -> None:
    header = reply_header()
    ext = encode_ext(header) if code == RequestCode.SEND_REPLY_MESSAGE else header.encode_letters()
    opaque = submit(client, code, ext, b"the answer")
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


def test_a_reply_of_a_gone_replier_still_goes_to_its_requester(client: FakeClient, requester: FakeClient) -> None:
    client.is_open = False
    send(client, oneway=True)
    assert requester.pushed_bodies == [b"the answer"]
    asked = client.call(RequestCode.GET_BROKER_CONFIG)
    assert (asked.code, asked.remark) == (ResponseCode.SYSTEM_BUSY, "its client is gone")


def test_a_reply_to_an_absent_requester_is_refused(client: FakeClient, requester: FakeClient) -> None:
    refused = client.answered(send(client, properties={"REPLY_TO_CLIENT": "10.0.0.1@1"}))
    assert_refused(refused, ResponseCode.SYSTEM_ERROR, "channel of <10.0.0.1@1> not found")
    assert ("outcome" in refused.ext, requester.pushed) == (False, [])


@pytest.mark.parametrize("disconnects", [False, True])
def test_a_reply_to_a_requester_that_is_silent_or_disconnects_has_an_unknown_outcome(
    broker: ServedBroker, client: FakeClient, requester: FakeClient, disconnects: bool
) -> None:
    opaque = send(client)
    broker.advance(ANSWERED_WITHIN_S - 0.1)
    assert not client.has_answer(opaque)
    if disconnects:
        broker.service.channel_lost(requester)
        broker.settle()
    else:
        broker.advance(0.2)
    assert client.answered(opaque).ext["outcome"] == "unknown"


def test_the_refusal_of_a_requester_is_quoted_to_the_replier(client: FakeClient, requester: FakeClient) -> None:
    opaque = send(client)
    acknowledge(requester, 1, "nobody waits")
    assert_refused(client.answered(opaque), ResponseCode.SYSTEM_ERROR, "code 1, nobody waits")


def test_max_relayed_calls_limits_replies_that_wait(make_broker: MakeBroker) -> None:
    broker = make_broker(max_relayed_calls=1)
    client, requester = broker.client(), connected(broker)
    waiting, refused = send(client), send(client)
    assert_refused(client.answered(refused), ResponseCode.SYSTEM_BUSY, "max_relayed_calls")
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
    assert_refused(client.answered(send(client, body, **fields)), code, text)
    assert requester.pushed == []


def test_a_reply_with_a_negative_queue_id_is_answered_with_queue_0(client: FakeClient, requester: FakeClient) -> None:
    opaque = send(client, queue_id=-1)
    acknowledge(requester)
    assert client.answered(opaque).ext["queueId"] == "0"


# ---- replies on three simulated nodes


PROPERTIES = f"CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01{REQUESTER}\x02"
ANSWER_WITHIN_S = 4.0


class Conversation:
    """Requester at one node, and repliers at others."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.node = self.brokers.follower
        self.pushed: list[RemotingCommand] = []
        connection = self.brokers.connect(self.node)
        connection.on_push = self.pushed.append
        heartbeat = encode_heartbeat(HeartbeatData(REQUESTER, [ProducerData("askers")], []))
        self.brokers.ask(connection, RequestCode.HEART_BEAT, {}, heartbeat)
        self.brokers.run(1.0)

    def reply(self, through: str, body: bytes) -> None:
        """Send a reply to a node, and let the requester get it."""
        fields = {
            "a": "repliers",
            "b": SIMULATED_TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "1",
            "h": "0",
        }
        connection = self.brokers.connect(through)
        answers = self.brokers.ask(connection, RequestCode.SEND_REPLY_MESSAGE_V2, {**fields, "i": PROPERTIES}, body)
        self.brokers.run(ANSWER_WITHIN_S)
        [answer] = answers
        assert answer is not None
        assert answer.ext.get("outcome") == "unknown", "the simulated requester does not say that it has the reply"


def test_a_reply_finds_its_requester_from_every_node() -> None:
    conversation = Conversation()
    nodes = sorted(conversation.brokers.group.nodes)
    for name in nodes:
        conversation.reply(name, name.encode())
    assert [command.body.decode() for command in conversation.pushed] == nodes
    assert {command.code for command in conversation.pushed} == {RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT}


def test_a_new_leader_knows_where_the_requester_is() -> None:
    conversation = Conversation()
    group, old = conversation.brokers.group, conversation.brokers.leader
    group.kill(old)
    conversation.brokers.run(3.0)
    conversation.reply(next(name for name in group.nodes if name not in (old, conversation.node)), b"still here")
    assert [command.body for command in conversation.pushed] == [b"still here"]
