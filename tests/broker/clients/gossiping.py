"""Nodes that tell each other of their clients, over a network that tests cut."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any, Generic, TypeVar

from dledger.net.transport import PeerError, PeerGoneError
from dledger.statemachine import Leadership
from dledger.types import ReplicaId
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import ClientRow
from dledger_broker.features import COMMANDS
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from dledger_remoting.hosts import HostAddress
from tests.broker.telling import tell

OnReply = Callable[[bytes | PeerError], None]


class Channel:
    """Client's connection."""

    def __init__(self) -> None:
        self.address = HostAddress("10.0.0.9", 40000)
        self.client_ids: set[str] = set()


NodeT = TypeVar("NodeT", bound="Node")


class Network(Generic[NodeT]):
    """Nodes, of which the first leads. They reach each other unless cut off. Requests are answered after a turn."""

    def __init__(self, make: Callable[[Any, str, tuple[str, ...]], NodeT], *node_ids: str) -> None:
        self.env = FakeEnvironment()
        self.down: set[str] = set()
        self.largest = 0
        self.nodes = {node_id: make(self, node_id, node_ids) for node_id in node_ids}
        self.leader, self.follower, *_ = self.nodes.values()
        for node in self.nodes.values():
            node.gossip.start(node)
        self.settle()
        self.lead(node_ids[0])

    def settle(self, seconds: float = 0.1) -> None:
        self.env.advance(seconds)

    def lead(self, leader: str | None, term: int = 1) -> None:
        for node_id, node in self.nodes.items():
            own = node_id == leader
            node.group.on_leadership(Leadership(term, leader, is_leader=own, ready=own))
        self.settle()


class Node:
    """One node's part in the gossip, which is its own channel to the others."""

    def __init__(self, network: Network[Any], node_id: str, node_ids: tuple[str, ...]) -> None:
        self.network = network
        self.node_id = node_id
        self.group = LeadershipView(node_id, f"10.0.0.1:{node_id[1:]}")
        self.notified: list[set[str]] = []
        self.told: list[str] = []
        """The clients that got a request 40 from this node."""
        self.joined: list[ClientRow] = []
        self.learned: dict[str, tuple[int, ...]] = {}
        self.holding = False
        self.gossip = Gossip(
            network.env,
            self.group,
            [other for other in node_ids if other != node_id],
            COMMANDS.kinds,
            lambda node_id, kinds: self.learned.update({node_id: kinds}),
        )
        self.gossip.attach_members(self)
        tell(self.group.events, "leader_changed", self.gossip.leader_changed)
        self.gossip.attach_pulls(self)

    def __len__(self) -> int:
        return int(self.holding)

    def release_groups(self, groups: set[str]) -> None:
        raise AssertionError("whoever tells members has their pulls released")

    def ensure_all(self, rows: Iterable[ClientRow]) -> None:
        self.joined.extend(rows)

    def notify(self, groups: set[str], clients: Container[str] | None) -> None:
        self.notified.append(groups)
        for group in groups:
            for channel in self.gossip.local.channels_of(group, clients):
                self.told.extend(channel.client_ids)

    def submit(self, to: str, data: bytes, on_reply: OnReply, timeout_s: float) -> bool:
        if {to, self.node_id} & self.network.down:
            return False
        self.network.largest = max(self.network.largest, len(data))

        def deliver() -> None:
            if {to, self.node_id} & self.network.down:
                on_reply(PeerGoneError("the link was lost"))
            else:
                self.network.nodes[to].gossip.on_request(ReplicaId(self.node_id, "i"), data, on_reply)

        self.network.env.call_soon(deliver)
        return True

    def heartbeat(
        self, client_id: str, topic: str = "T1", channel: Channel | None = None, expression_type: str = "TAG"
    ) -> Channel:
        channel = channel or Channel()
        subscription = SubscriptionData(topic, expression_type=expression_type)
        consumer = ConsumerData("CG", subscription_data_set=[subscription])
        data = HeartbeatData(client_id, [ProducerData("PG")], [consumer])
        self.gossip.local.heartbeat(channel, data, 0, 479, self.network.env.now())
        return channel

    def joined_by(self, client_id: str) -> Channel:
        """Receive a client's heartbeat, and let the others learn of it."""
        channel = self.heartbeat(client_id)
        self.network.settle()
        return channel

    def members(self, group: str = "CG") -> list[str]:
        return self.gossip.merged.members(group)
