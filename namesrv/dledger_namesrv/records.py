"""Records of the route registry: nodes, broker groups, what registering one came to, encoded routes."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import DataVersion
from dledger_remoting.route import MASTER_ID, BrokerData, QueueData
from dledger_remoting.topics import TopicConfig


class NodeKey(NamedTuple):
    """What identifies a node: brokers of different clusters may not share an address, but stale data may."""

    cluster: str
    address: str


class TableLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one registry holds; whoever can connect can register. Names are those of the configuration's keys."""

    max_nodes: int = 4_096
    """Registered nodes."""
    max_routes: int = 1_000_000
    """Topics of all broker groups that have a live node, added up; those of absent groups may be as many again."""
    max_absent_groups: int = 256
    """Beyond it the group that has been away longest is forgotten."""


class Registered(msgspec.Struct, frozen=True):
    """The outcome of a registration. `refusal` is empty if it took effect; the limit in its way has the name `limit`.

    Followers are told of their leader.
    """

    refusal: str = ""
    master_address: str | None = None
    ha_address: str | None = None
    limit: str = ""


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


def queue_data(broker_name: str, config: TopicConfig) -> QueueData:
    """The queues of a topic in a broker group."""
    return QueueData(broker_name, config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag)


def with_master(data: BrokerData) -> BrokerData:
    """A group's addresses with an id 0: the lowest live id stands in."""
    if MASTER_ID in data.broker_addrs or not data.broker_addrs:
        return data
    acting = data.broker_addrs[min(data.broker_addrs)]
    return msgspec.structs.replace(data, broker_addrs={MASTER_ID: acting, **data.broker_addrs})


def is_topic_source(group: Group, broker_id: int) -> bool:
    """Topics come from the leader, or from the lowest follower where acting masters are on."""
    return broker_id == MASTER_ID or (group.enable_acting_master and broker_id == min(group.nodes))


def is_news(group: Group, header: RegisterBrokerHeader, version: DataVersion) -> bool:
    """Whether topics of this version take the place of those known; complete ones only if they are younger."""
    known = group.topics_version
    if known is None or not header.topics_complete:
        return known != version
    return (version.state_version, version.counter) > (known.state_version, known.counter)
