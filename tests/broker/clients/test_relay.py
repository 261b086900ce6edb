"""Requests of the broker to clients: through the node that the client is connected to, in one hop, never sent twice."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from dledger.net.transport import PeerError, PeerGoneError, PeerTimeoutError
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients.relay import Answer, Busy, Delivered, Gone, Outcome, Relay, TimedOut
from dledger_broker.config import BrokerConfig
from dledger_broker.frontend.listener import Listener
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.command import FLAG_RESPONSE, RemotingCommand, decode_command, encode_command
from dledger_remoting.errors import FrameError
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.heartbeat import HeartbeatData, ProducerData, encode_heartbeat
from tests.broker.clients.gossiping import Channel, Network, Node, OnReply
from tests.broker.served_broker import make_served_broker

TIMEOUT_S = 3.0


class ClientOfNode(Channel):
    """Client and its connection. It answers when a test tells it to."""

    serialize_type = 0
    wants_leader_notices = False

    def __init__(self, node: Relaying, client_id: str) -> None:
        super().__init__()
        self.key = f"{node.node_id}/{client_id}"
        self.asked: list[tuple[int, dict[str, str], bytes, bool]] = []
        self._node = node
        data = HeartbeatData(client_id, [ProducerData("PG")], [])
        node.gossip.local.heartbeat(self, data, 0, 479, node.network.env.now())
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
    """Channel of a node's relay to the others."""

    def __init__(self, network: RelayNetwork, node_id: str) -> None:
        self._network = network
        self._node_id = node_id

    def submit(self, to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        network = self._network
        if {to, self._node_id} & network.down:
            return False
        network.relayed += 1
        if network.fails_with is not None:
            network.env.call_soon(partial(on_reply, network.fails_with))
        else:
            relay = network.nodes[to].relay
            network.env.call_soon(partial(relay.on_request, ReplicaId(self._node_id, "i"), data, on_reply))
        return True


class Relaying(Node):
    """Node that has clients, and nothing else of a node."""

    def __init__(self, network: RelayNetwork, node_id: str, node_ids: tuple[str, ...]) -> None:
        super().__init__(network, node_id, node_ids)
        self.counters, local, merged = BrokerCounters(), self.gossip.local, self.gossip.merged
        limit = network.limit
        config = BrokerConfig(broker_group="b", node_id=node_id, data_dir=Path("unused"), max_relayed_calls=limit)
        self.relay = Relay(network.env, node_id, local, merged, config, self.counters, Access())
        self.relay.attach(Wire(network, node_id))  # type: ignore[arg-type]


class RelayNetwork(Network[Relaying]):
    """The leader n1 and the follower n2."""

    def __init__(self, limit: int = 1_000) -> None:
        self.limit = limit
        self.relayed = 0
        self.outcomes: list[Outcome] = []
        self.fails_with: PeerError | None = None
        super().__init__(Relaying, "n1", "n2")

    def client(self, node_id: str, client_id: str = "c1") -> ClientOfNode:
        return ClientOfNode(self.nodes[node_id], client_id)

    def ask(self, client_id: str = "c1", timeout_s: float = TIMEOUT_S) -> None:
        """Have the leader ask a client. What it is told goes to `outcomes`."""
        self.leader.relay.call(client_id, 307, {"a": "b"}, b"body", timeout_s, self.outcomes.append)
        assert self.outcomes == [], "nothing is told inside the call"
        self.settle()


@pytest.fixture
def network() -> RelayNetwork:
    return RelayNetwork()


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_a_request_reaches_a_client_through_the_node_of_its_connection(network: RelayNetwork, holder: str) -> None:
    client = network.client(holder)
    network.ask()
    client.answer(5, b"said")
    assert network.outcomes == [Answer(5, "", {}, b"said")]
    assert [node.relay.waiting for node in network.nodes.values()] == [0, 0]
    assert network.relayed == (holder == "n2")
    network.outcomes.clear()
    network.ask(timeout_s=0)
    assert network.outcomes == [Delivered()], "it asks for no answer"
    assert client.asked == [(307, {"a": "b"}, b"body", oneway) for oneway in (False, True)]


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_a_request_that_cannot_be_encoded_for_a_client_is_answered_and_stops_waiting(
    network: RelayNetwork, holder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of 40,000 bytes does not fit the client's serialization. It once used up a place for waiting."""
    client = network.client(holder)

    def refuses(*_: object, **__: object) -> NoReturn:
        raise FrameError("a name of 40000 bytes, the limit is 32767")

    monkeypatch.setattr(client, "push", refuses)
    network.ask()
    assert network.outcomes == [Gone()]
    assert [node.relay.waiting for node in network.nodes.values()] == [0, 0]


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_a_relayed_call_times_out_and_ignores_a_late_answer(network: RelayNetwork, holder: str) -> None:
    client = network.client(holder)
    network.ask()
    network.settle(TIMEOUT_S - 0.2)
    assert network.outcomes == []
    network.settle(0.2)
    assert network.outcomes == [TimedOut()]
    client.answer()
    assert network.outcomes == [TimedOut()]


def test_answers_of_another_connection_or_request_are_ignored(network: RelayNetwork) -> None:
    client, other = network.client("n1"), network.client("n1", "c2")
    network.ask()
    other.answer()
    client.answer(opaque=7)
    assert network.outcomes == []


def test_requests_to_an_unconnected_client_or_of_a_stopping_node_are_answered_as_gone(network: RelayNetwork) -> None:
    network.ask()
    assert network.outcomes == [Gone()]
    network.outcomes.clear()
    network.client("n1")
    network.ask()
    network.leader.relay.close()
    assert network.outcomes == [Gone(may_have_got=True)]


def test_a_client_that_disconnects_before_its_answer_may_have_received_the_request(network: RelayNetwork) -> None:
    for holder in ("n1", "n2"):
        client = network.client(holder, holder)
        network.ask(holder)
        client.close()
        network.settle()
        assert network.outcomes == [Gone(may_have_got=True)]
        network.outcomes.clear()


def test_another_node_is_tried_only_if_the_client_cannot_have_got_the_request(network: RelayNetwork) -> None:
    network.client("n2", "first")
    second = network.client("n2", "second")
    leader = network.leader
    # The connection of `first` is lost, and the leader has not been told yet.
    network.down = {"n2"}
    network.follower.gossip.local.unregister("first", "PG", None)
    network.down = set()
    told: list[Outcome] = []
    for _ in range(2):  # each call begins with another producer
        leader.relay.call_producer("PG", 39, {}, b"", 0, told.append)
        network.env.run_ready()
    assert told == [Delivered(), Delivered()]
    assert len(second.asked) == 2
    network.fails_with = PeerGoneError("the link was lost")
    network.ask("second")
    assert network.outcomes == [Gone(may_have_got=True)]
    network.outcomes.clear()
    network.fails_with = PeerTimeoutError("no answer")
    network.ask("second")
    assert network.outcomes == [TimedOut()]
    network.outcomes.clear()
    network.down = {"n2"}
    network.ask("second")
    assert network.outcomes == [Gone()]


def test_producers_of_a_group_are_asked_in_turn(network: RelayNetwork) -> None:
    clients = [network.client(node_id, node_id) for node_id in ("n1", "n2")]
    for _ in range(4):
        network.leader.relay.call_producer("PG", 39, {}, b"half", 0, network.outcomes.append)
    network.leader.relay.call_producer("nobody", 39, {}, b"half", 0, network.outcomes.append)
    network.settle()
    assert [len(client.asked) for client in clients] == [2, 2]
    assert network.outcomes.count(Delivered()) == 4
    assert network.outcomes.count(Gone()) == 1


@pytest.mark.parametrize("holder", ["n1", "n2"])
def test_max_relayed_calls_refuses_to_send(holder: str) -> None:
    network = RelayNetwork(limit=2)
    client = network.client(holder)
    for _ in range(3):
        network.leader.relay.call("c1", 307, {}, b"", TIMEOUT_S, network.outcomes.append)
    network.settle()
    assert network.outcomes == [Busy()]
    assert len(client.asked) == 2
    assert network.leader.counters.max_relayed_calls == 1
    client.answer()
    network.outcomes.clear()
    network.follower.relay.call("c1", 307, {}, b"", TIMEOUT_S, network.outcomes.append)
    network.settle()
    assert Busy() not in network.outcomes


def test_max_relayed_calls_also_counts_at_the_node_of_the_client() -> None:
    network = RelayNetwork(limit=1)
    network.client("n2")
    network.follower.relay.call("c1", 307, {}, b"", TIMEOUT_S, lambda _: None)
    network.ask()
    assert network.outcomes == [Busy()]
    assert network.follower.counters.max_relayed_calls == 1


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
        # An answer that nobody asked for, the answer to the request, and a request of the client behind them.
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


def test_a_new_leader_ensures_the_groups_of_clients_reported_before_its_readiness(network: RelayNetwork) -> None:
    """Other nodes tell of their clients once, and again only when the clients change."""
    ensured: list[str] = []
    leader, other = network.leader, network.follower
    leader.ensure_all = lambda rows: ensured.extend(row.client_id for row in rows)  # type: ignore[attr-defined, method-assign]
    for ready in (False, True):
        leader.group.on_leadership(Leadership(2, "n1", is_leader=True, ready=ready))
        if not ready:
            other.group.on_leadership(Leadership(2, "n1", is_leader=False, ready=False))
            ClientOfNode(other, "c7")
            network.settle(1.0)
            assert ensured == []
    assert ensured == ["c7"]
