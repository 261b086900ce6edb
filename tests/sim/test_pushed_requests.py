"""Simulated nodes send requests to their clients, over the connections of the clients' heartbeats."""

from __future__ import annotations

from typing import cast

import pytest

from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.heartbeat import HeartbeatData, ProducerData
from dledger_sim.brokers.connection import SimConnection
from dledger_sim.brokers.schedules.brokers import Brokers
from dledger_sim.brokers.service import SimBroker

ASKED = RequestCode.CHECK_TRANSACTION_STATE


class Asked:
    """Producer that is connected to the leader of a whole group."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.heard: list[RemotingCommand] = []
        self.connection: SimConnection = self.brokers.connect(self.brokers.leader)
        self.connection.on_push = self.heard.append
        body = encode_body(HeartbeatData("producer@1", [ProducerData("producers")]))
        answers = self.brokers.ask(self.connection, RequestCode.HEART_BEAT, {}, body)
        self.brokers.run(0.5)
        assert [answer.code for answer in answers if answer] == [ResponseCode.SUCCESS]

    @property
    def node(self) -> SimBroker:
        life = self.brokers.group.nodes[self.brokers.leader].life
        assert life is not None
        return cast(SimBroker, life.service)

    def push(self) -> None:
        """Let the node send a request to the producer."""
        self.node.service.relay.call_producer("producers", ASKED, {"n": "1"}, b"half", 0.0, lambda _: None)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_client_receives_the_pushed_request_of_its_node(asked: Asked) -> None:
    asked.push()
    asked.brokers.run(0.1)
    (heard,) = asked.heard
    assert (heard.code, heard.flag, heard.ext, bytes(heard.body)) == (ASKED, FLAG_ONEWAY, {"n": "1"}, b"half")


def test_a_client_that_has_gone_hears_nothing_and_its_node_forgets_it(asked: Asked) -> None:
    asked.push()
    asked.connection.close()
    asked.brokers.run(0.1)
    assert asked.heard == []
    assert len(asked.node.service.gossip.local) == 0


def test_a_node_that_its_client_does_not_reach_does_not_reach_its_client(asked: Asked) -> None:
    asked.brokers.group.unreachable.add(asked.brokers.leader)
    asked.push()
    asked.brokers.run(0.1)
    assert asked.heard == []
