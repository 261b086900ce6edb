"""Records of the route registry: nodes, broker groups, outcomes of registrations, encoded routes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.registration import DataVersion
from dledger_remoting.route import MASTER_ID, BrokerData, QueueData
from dledger_remoting.topics import CREATED_ATTRIBUTE, PERM_WRITE, TopicConfig

MEMBERS_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Prefix of the topics whose routes show RocketMQ's brokers which brokers of their group are alive."""


_MOST_DIGITS: Final = 19
"""Numbers of fewer digits fit into 64 bits."""


class NodeKey(NamedTuple):
    """Identity of a node. Two live nodes never have one address, but a stale entry of another cluster may have it."""

    cluster: str
    address: str


class TableLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one registry, needed because any client may register. Names are as in the configuration."""

    max_nodes: int = 4_096
    """Maximum number of registered nodes."""
    max_routes: int = 1_000_000
    """Maximum sum of the topics of all broker groups that have a live node. Absent groups may have as many again."""
    max_absent_groups: int = 256
    """Maximum number of absent groups. Beyond it the group that has been away longest is forgotten."""


class Registered(msgspec.Struct, frozen=True):
    """Outcome of a registration.

    `refusal` says why it was refused, and is empty if it took effect. `limit` names the limit that it would exceed, if
    that is why. The addresses are the leader's, for the answer to a follower.
    """

    refusal: str = ""
    master_address: str | None = None
    ha_address: str | None = None
    limit: str = ""


class Alias(msgspec.Struct, frozen=True, rename="camel"):
    """The write alias of a node: an address for sends, beside the node's own address."""

    node_id: str
    broker_addr: str
    address: str


class KnownGroup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A broker group's cluster and identity, its queues by topic, and its nodes' write aliases by their numbers."""

    cluster: str
    queues: dict[str, QueueData]
    aliases: dict[int, Alias] = {}
    identity: str = ""


class Node(msgspec.Struct):
    """A live node: fields of its last registration, and the number of the connection over which that came.

    `last_seen_ms` is the time of the last registration or heartbeat. The node is removed if it is silent for longer
    than `timeout_ms`.
    """

    broker_name: str
    broker_id: int
    data_version: DataVersion
    ha_address: str
    connection: int
    last_seen_ms: int
    timeout_ms: int


class Group(msgspec.Struct):
    """A broker group. `leader_term` is the highest term in which an id 0 registered since the group appeared.

    `nodes` is empty only before the first node is added. No address occurs in it twice. `edited` says that an operator
    has changed topics here that the leader registered. These changes hold until a whole registration has another
    version of the topics. `aliases` are the nodes' write aliases by number, `aliased` the topics that have them.
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
        """The cluster of the group, as its leader or else the node with the lowest id names it. Nodes may differ."""
        return self.nodes[min(self.nodes)].cluster

    @property
    def addresses(self) -> dict[int, str]:
        """Addresses of the nodes, sorted by id."""
        return {broker_id: key.address for broker_id, key in sorted(self.nodes.items())}


class CachedRoute(NamedTuple):
    """The encoded route of a topic, as of a version of the table."""

    version: int
    body: bytes


def refusal_of(
    group: Group | None, header: RegisterBrokerHeader, term: int, topic_count: int, term_of: Callable[[NodeKey], int]
) -> str:
    """Return why a registration of this term must not take effect, empty if it may.

    `term_of` returns the term of a node's last registration.
    """
    if group is None:
        known: Mapping[int, str] = {}
    else:
        known = group.addresses
        touches_leader = header.broker_id == MASTER_ID or known.get(MASTER_ID) == header.broker_addr
        if touches_leader and term < group.leader_term:
            return f"term {term} is older than {group.leader_term}, in which the leader of the group registered"
        holder = group.nodes.get(header.broker_id)
        if holder is not None and holder.address != header.broker_addr:
            since = term_of(holder)
            if since > term:
                return f"id {header.broker_id} belongs to {holder.address} since term {since}"
    if topic_count == 1 and header.broker_id not in known and header.broker_addr not in known.values():
        return f"{header.broker_addr} sent a single topic before its first full registration"
    return ""


def goes_beyond(
    max_routes: int, count: int, held: Mapping[str, QueueData], named: Collection[str], *, deleted: int | None
) -> bool:
    """Return whether a registration of a group would raise the number of routes above `max_routes`.

    `count` is the number of routes now. `held` are the routes of the group now, and `named` are the topics that it
    registers. The group gives up `deleted` of its routes. None means that it gives up all that it does not name. A
    registration that adds no route is never too many.
    """
    if count + len(named) <= max_routes:
        return False
    known = sum(map(held.__contains__, named))
    given_up = len(held) - known if deleted is None else deleted
    return known < len(named) and count + len(named) - known - given_up > max_routes


def queue_data(broker_name: str, config: TopicConfig) -> QueueData:
    """Return the queues of a topic in a broker group."""
    return QueueData(
        broker_name,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.topic_sys_flag,
        _parse_created(config.attributes[CREATED_ATTRIBUTE]) if CREATED_ATTRIBUTE in config.attributes else None,
    )


def _parse_created(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < _MOST_DIGITS else None


def stand_in(data: BrokerData, queue: QueueData, topic: str) -> tuple[BrokerData, QueueData]:
    """Return a group and its queues as a route shows them. If no node has id 0, the node with the lowest id stands in.

    The node is shown as id 0 beside its own id, because a client that sees no id 0 stops sending for 30 s. Our
    followers forward to the leader what only a leader may do.

    Groups of RocketMQ with `slaveActingMaster` are shown as RocketMQ's name servers show them with
    `supportActingMaster`. The node has id 0 instead of its own, and can be read but not written to. From the route of a
    topic with `MEMBERS_TOPIC_PREFIX` the brokers of RocketMQ learn which of them are alive, so its addresses stay as
    they are.
    """
    if MASTER_ID in data.broker_addrs or not data.broker_addrs:
        return data, queue
    lowest = min(data.broker_addrs)
    addresses = {MASTER_ID: data.broker_addrs[lowest], **data.broker_addrs}
    if data.enable_acting_master:
        queue = msgspec.structs.replace(queue, perm=queue.perm & ~PERM_WRITE)
        if topic.startswith(MEMBERS_TOPIC_PREFIX):
            return data, queue
        del addresses[lowest]
    return msgspec.structs.replace(data, broker_addrs=addresses), queue


def is_topic_source(group: Group, broker_id: int) -> bool:
    """Return whether a node's registered topics count: as the leader, or as the acting master in place of one."""
    return broker_id == MASTER_ID or (group.enable_acting_master and broker_id == min(group.nodes))


def is_news(group: Group, header: RegisterBrokerHeader, version: DataVersion) -> bool:
    """Return whether topics of this version replace the recorded topics.

    Complete topics do so only if they are newer.
    """
    known = group.topics_version
    if known is None or not header.topics_complete:
        return known != version
    return (version.state_version, version.counter) > (known.state_version, known.counter)
