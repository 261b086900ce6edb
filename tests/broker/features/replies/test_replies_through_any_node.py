"""Replies on three simulated nodes: they find their requester through whichever node it is connected to."""

from __future__ import annotations

from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers

REQUESTER = "10.0.0.9@77"
PROPERTIES = f"CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01{REQUESTER}\x02"
ANSWER_WITHIN_S = 4.0


class Conversation:
    """A requester at one node, and repliers at others."""

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
        fields = {"a": "repliers", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
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
