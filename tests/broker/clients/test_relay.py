"""Requests of the broker to clients: through the node that has the client, one hop, never sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from dledger.net.errors import PeerError, PeerGoneError, PeerTimeoutError
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.relay import Answer, Busy, Delivered, Gone, Outcome, Relay, TimedOut
from dledger_broker.config import BrokerConfig
from dledger_broker.features import COMMANDS
from dledger_broker.frontend.listener import Listener
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import Group
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.testing import BrokerInMemory, FakeEnvironment
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from dledger_remoting.hosts import HostAddress
from tests.broker.served_broker import make_served_broker

OnReply = Callable[[bytes | PeerError], None]
TIMEOUT_S = 3.0


class ClientOfNode:
    """A client's connection, and the client, which answers when it is told to."""

    serialize_type = 0
    wants_leader_notices = False

    def __init__(self, node: Node, client_id: str) -> None:
        self.address = HostAddress("10.0.0.9", 40000)
        self.key = f"{node.node_id}/{client_id}"
        self.client_ids: set[str] = set()
        self.asked: list[tuple[int, dict[str, str], bytes, bool]] = []
        self._node = node
        node.gossip.local.heartbeat(self, HeartbeatData(client_id, [ProducerData("PG")], []), 0, 479, node.env.now())
        node.network.settle()

    def push(self, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = True) -> int:
        self.asked.append((code, ext, body, oneway))
        return len(self.asked)

    def answer(self, code: int = 0, body: bytes = b"", opaque: int = 1) -> None:
        self._node.relay.take_answer(self.key, RemotingCommand(code, opaque, FLAG_RESPONSE, body=body))
        self._node.network.settle()

    def close(self) -> None:
        self._node.gossip.local.channel_lost(self)
        self._node.relay.channel_lost(self)


class Wire:
    """One channel of a node to the others."""

    def __init__(self, node: Node, number: int) -> None:
        self._node = node
        self._number = number

    def submit(self, to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        network = self._node.network
        if {to, self._node.node_id} & network.down:
            return False
        network.relayed += self._number == 3
        error = network.fails_with
        if error is not None and self._number == 3:
            network.env.call_soon(partial(on_reply, error))
            return True
        part = network.nodes[to].gossip if self._number == 2 else network.nodes[to].relay
        network.env.call_soon(partial(part.on_request, ReplicaId(self._node.node_id, "i"), data, on_reply))
        return True


class Node:
    """A node that has clients; nothing else of it is there."""

    def __init__(self, network: Network, node_id: str, others: list[str], limit: int) -> None:
        self.network = network
        self.env = network.env
        self.node_id = node_id
        self.group = Group(node_id, f"10.0.0.1:{node_id[1:]}")
        self.counters = BrokerCounters()
        config = BrokerConfig(broker_group="b", node_id=node_id, data_dir=Path("unused"), max_relayed_calls=limit)
        self.gossip = Gossip(network.env, self.group, others, COMMANDS.kinds, lambda *_: None)
        self.gossip.attach_members(self)
        self.relay = Relay(network.env, node_id, self.gossip.local, self.gossip.merged, config, self.counters, Access())

    def ensure_all(self, rows: object) -> None:
        """Nothing is needed."""

    def notify(self, groups: object, clients: object) -> None:
        """Nobody is told."""


class Network:
    def __init__(self, limit: int = 1_000) -> None:
        self.env = FakeEnvironment()
        self.down: set[str] = set()
        self.relayed = 0
        self.fails_with: PeerError | None = None
        ids = ["n1", "n2"]
        self.nodes = {node_id: Node(self, node_id, [one for one in ids if one != node_id], limit) for node_id in ids}
        for node in self.nodes.values():
            node.gossip.start(Wire(node, 2))  # type: ignore[arg-type]
            node.relay.attach(Wire(node, 3))  # type: ignore[arg-type]
        for node_id, node in self.nodes.items():
            node.group.on_leadership(Leadership(1, "n1", is_leader=node_id == "n1", ready=node_id == "n1"))
        self.settle()

    def settle(self, seconds: float = 0.1) -> None:
        self.env.advance(seconds)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def outcomes() -> list[Outcome]:
    return []


def ask(network: Network, outcomes: list[Outcome], client_id: str = "c1", timeout_s: float = TIMEOUT_S) -> None:
    network.nodes["n1"].relay.call(client_id, 307, {"a": "b"}, b"body", timeout_s, outcomes.append)
    assert outcomes == [], "nothing is told inside the call"
    network.settle()


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_a_client_is_asked_through_the_node_that_it_is_connected_to(
    network: Network, outcomes: list[Outcome], holder: str
) -> None:
    client = ClientOfNode(network.nodes[holder], "c1")
    ask(network, outcomes)
    assert client.asked == [(307, {"a": "b"}, b"body", False)]
    client.answer(5, b"said")
    assert outcomes == [Answer(5, "", {}, b"said")]
    assert [node.relay.waiting for node in network.nodes.values()] == [0, 0]
    assert network.relayed == (holder == "n2")


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_what_cannot_be_encoded_for_a_client_is_answered_and_waits_no_longer(
    network: Network, outcomes: list[Outcome], holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of 40,000 bytes does not fit the client's serialization: the places of those that wait were used up."""
    client = ClientOfNode(network.nodes[holder], "c1")

    def refuses(*_: object, **__: object) -> NoReturn:
        raise FrameError("a name of 40000 bytes, the limit is 32767")

    monkeypatch.setattr(client, "push", refuses)
    ask(network, outcomes)
    assert outcomes == [Gone()]
    assert [node.relay.waiting for node in network.nodes.values()] == [0, 0]


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_a_request_without_an_answer_is_delivered(network: Network, outcomes: list[Outcome], holder: str) -> None:
    client = ClientOfNode(network.nodes[holder], "c1")
    ask(network, outcomes, timeout_s=0)
    assert client.asked == [(307, {"a": "b"}, b"body", True)]
    assert outcomes == [Delivered()]


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_silence_is_told_in_time_and_a_late_answer_means_nothing(
    network: Network, outcomes: list[Outcome], holder: str
) -> None:
    client = ClientOfNode(network.nodes[holder], "c1")
    ask(network, outcomes)
    network.settle(TIMEOUT_S - 0.2)
    assert outcomes == []
    network.settle(0.2)
    assert outcomes == [TimedOut()]
    client.answer()
    assert outcomes == [TimedOut()]


def test_an_answer_counts_on_the_connection_that_was_asked_alone(network: Network, outcomes: list[Outcome]) -> None:
    client = ClientOfNode(network.nodes["n1"], "c1")
    other = ClientOfNode(network.nodes["n1"], "c2")
    ask(network, outcomes)
    other.answer()
    client.answer(opaque=7)
    assert outcomes == []


def test_a_client_that_nobody_has_is_gone(network: Network, outcomes: list[Outcome]) -> None:
    ask(network, outcomes)
    assert outcomes == [Gone()]


def test_one_that_goes_before_it_answers_may_have_got_the_request(network: Network, outcomes: list[Outcome]) -> None:
    for holder in ("n1", "n2"):
        client = ClientOfNode(network.nodes[holder], holder)
        ask(network, outcomes, holder)
        client.close()
        network.settle()
        assert outcomes == [Gone(may_have_got=True)]
        outcomes.clear()


def test_a_node_that_stops_tells_those_who_wait(network: Network, outcomes: list[Outcome]) -> None:
    ClientOfNode(network.nodes["n1"], "c1")
    ask(network, outcomes)
    network.nodes["n1"].relay.close()
    assert outcomes == [Gone(may_have_got=True)]


def test_another_node_is_tried_only_if_the_client_cannot_have_got_the_request(
    network: Network, outcomes: list[Outcome]
) -> None:
    ClientOfNode(network.nodes["n2"], "first")
    second = ClientOfNode(network.nodes["n2"], "second")
    leader = network.nodes["n1"]
    # The first one's connection is lost, and the leader has not been told yet.
    network.down = {"n2"}
    network.nodes["n2"].gossip.local.unregister("first", "PG", None)
    network.down = set()
    told: list[Outcome] = []
    for _ in range(2):  # each begins with another one
        leader.relay.call_producer("PG", 39, {}, b"", 0, told.append)
        network.env.run_ready()
    assert told == [Delivered(), Delivered()]
    assert len(second.asked) == 2
    network.fails_with = PeerGoneError("the link was lost")
    ask(network, outcomes, "second")
    assert outcomes == [Gone(may_have_got=True)]
    outcomes.clear()
    network.fails_with = PeerTimeoutError("no answer")
    ask(network, outcomes, "second")
    assert outcomes == [TimedOut()]
    outcomes.clear()
    network.down = {"n2"}
    ask(network, outcomes, "second")
    assert outcomes == [Gone()]


def test_producers_of_a_group_are_asked_in_turn(network: Network, outcomes: list[Outcome]) -> None:
    clients = [ClientOfNode(network.nodes[node_id], node_id) for node_id in ("n1", "n2")]
    for _ in range(4):
        network.nodes["n1"].relay.call_producer("PG", 39, {}, b"half", 0, outcomes.append)
    network.nodes["n1"].relay.call_producer("nobody", 39, {}, b"half", 0, outcomes.append)
    network.settle()
    assert [len(client.asked) for client in clients] == [2, 2]
    assert outcomes.count(Delivered()) == 4
    assert outcomes.count(Gone()) == 1


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_max_relayed_calls_refuses_to_send(outcomes: list[Outcome], holder: str) -> None:
    network = Network(limit=2)
    client = ClientOfNode(network.nodes[holder], "c1")
    for _ in range(3):
        network.nodes["n1"].relay.call("c1", 307, {}, b"", TIMEOUT_S, outcomes.append)
    network.settle()
    assert outcomes == [Busy()]
    assert len(client.asked) == 2
    assert network.nodes["n1"].counters.max_relayed_calls == 1
    client.answer()
    outcomes.clear()
    network.nodes["n2"].relay.call("c1", 307, {}, b"", TIMEOUT_S, outcomes.append)
    network.settle()
    assert Busy() not in outcomes


def test_the_node_that_has_the_client_has_the_limit_too(outcomes: list[Outcome]) -> None:
    network = Network(limit=1)
    ClientOfNode(network.nodes["n2"], "c1")
    network.nodes["n2"].relay.call("c1", 307, {}, b"", TIMEOUT_S, lambda _: None)
    ask(network, outcomes)
    assert outcomes == [Busy()]
    assert network.nodes["n2"].counters.max_relayed_calls == 1


@pytest.mark.asyncio
async def test_a_client_answers_over_its_socket() -> None:
    config = BrokerConfig(broker_group="broker-a", node_id=NODE_ID, data_dir=Path("unused"))
    broker = make_served_broker(config, BrokerInMemory())
    service = broker.service
    listener = Listener(
        NODE_ID, LiveConfig(config), broker.counters, set(), service.requests.on_reads, service.channel_lost
    )
    await listener.bind("127.0.0.1", 0)
    await listener.serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    decoder = FrameDecoder()

    async def received() -> RemotingCommand:
        while (frame := decoder.next_frame()) is None:
            decoder.receive_data(await reader.read(1 << 16))
        return decode_command(frame)

    async with asyncio.timeout(10):
        heartbeat = encode_heartbeat(HeartbeatData("c1", [ProducerData("PG")], []))
        writer.write(encode_command(RemotingCommand(34, 1, body=heartbeat)))
        assert (await received()).code == 0
        outcomes: list[Outcome] = []
        service.relay.call("c1", 307, {"clientId": "c1"}, b"why", TIMEOUT_S, outcomes.append)
        broker.settle()
        request = await received()
        assert (request.code, request.flag, request.ext, request.body) == (307, 0, {"clientId": "c1"}, b"why")
        # What nobody asked for, what was asked, and a request of the client's own behind it.
        for opaque in (17, request.opaque):
            writer.write(encode_command(RemotingCommand(0, opaque, FLAG_RESPONSE, body=b"because")))
        writer.write(encode_command(RemotingCommand(34, 2, body=heartbeat)))
        assert (await received()).opaque == 2
        assert outcomes == [Answer(0, "", {}, b"because")]
        lost: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        service.relay.call("c1", 307, {}, b"", TIMEOUT_S, lost.set_result)
        broker.settle()
        await received()
        writer.close()
        assert await lost == Gone(may_have_got=True)
    await listener.close()


def test_a_leader_sees_to_what_clients_need_of_which_it_was_told_before_it_was_ready(network: Network) -> None:
    """Other nodes tell of their clients once, and again only when these change."""
    ensured: list[str] = []
    leader, other = network.nodes["n1"], network.nodes["n2"]
    leader.ensure_all = lambda rows: ensured.extend(row.client_id for row in rows)  # type: ignore[attr-defined, method-assign]
    for ready in (False, True):
        leader.group.on_leadership(Leadership(2, "n1", is_leader=True, ready=ready))
        if not ready:
            other.group.on_leadership(Leadership(2, "n1", is_leader=False, ready=False))
            ClientOfNode(other, "c7")
            network.settle(1.0)
            assert ensured == []
    assert ensured == ["c7"]
