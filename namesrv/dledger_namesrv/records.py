"""Records of the route registry: nodes, broker groups, what registering one came to, encoded routes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dledger_remoting.registration import DataVersion
from dledger_remoting.route import QueueData


class NodeKey(NamedTuple):
    """What identifies a node: brokers of different clusters may not share an address, but stale data may."""

    cluster: str
    address: str


class Registered(msgspec.Struct, frozen=True):
    """The outcome of a registration. `refusal` is empty if it took effect; the others are known to followers only."""

    refusal: str = ""
    master_address: str | None = None
    ha_address: str | None = None


class Alias(msgspec.Struct, frozen=True, rename="camel"):
    """The write alias of a node: where it takes sends, beside the node's own address."""

    node_id: str
    broker_addr: str
    address: str


class KnownGroup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A broker group's cluster, its queues by topic, and the write aliases of its nodes by their numbers."""

    cluster: str
    queues: dict[str, QueueData]
    aliases: dict[int, Alias] = {}


class Node(msgspec.Struct):
    """A live node: what its last registration said, and when and on which connection it came."""

    broker_name: str
    broker_id: int
    data_version: DataVersion
    ha_address: str
    connection: int
    last_seen_ms: int
    timeout_ms: int


class Group(msgspec.Struct):
    """A broker group. `leader_term` is the highest term in which an id 0 registered since the group appeared.

    `nodes` is empty only before the first one is put there; no address occurs in it twice. `edited`: an operator has
    changed here what the leader registered, which holds until it registers something else, and then as a whole.
    `aliases` are the nodes' write aliases by number, `aliased` the topics that have them.
    """

    nodes: dict[int, NodeKey]
    version: int
    enable_acting_master: bool = False
    leader_term: int = 0
    topics_version: DataVersion | None = None
    edited: bool = False
    aliases: dict[int, Alias] = {}
    aliased: set[str] = set()

    @property
    def cluster(self) -> str:
        """A group is in one cluster, whatever its nodes say: in the leader's, or in that of the lowest id."""
        return self.nodes[min(self.nodes)].cluster

    @property
    def addresses(self) -> dict[int, str]:
        """Where the nodes are, sorted by id."""
        return {broker_id: key.address for broker_id, key in sorted(self.nodes.items())}


class CachedRoute(NamedTuple):
    """The text of a route as of a version of the table."""

    version: int
    body: bytes
