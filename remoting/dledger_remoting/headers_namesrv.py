"""Headers of requests to a name server: codes 100-106, 205, 216, 219, 224, 322, 327, 901, 904, ours from 20001 on."""

from __future__ import annotations

import msgspec

from .integers import Int32, Int64


class BrokerNodeHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """One node of a broker group: unregisters it (104), compares its data version (322) or changes its topics (20005).

    `state_version` is an addition of ours: the Raft term in which the node speaks, so that a late unregistration cannot
    remove what the node registered in a newer term.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    state_version: Int64 | None = None


class RegisterBrokerHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Registers one node (103); `heartbeat_timeout_millis` is how long it may stay silent before it is dropped.

    `body_crc32` other than 0 must equal crc32(body) & 0x7fffffff. The body is `registration.RegisterBrokerBody`.
    The last fields are our own. `topics_complete`: the group has no other topics than those named, as of the body's
    data version. `node_id`, `alias_number` and `alias_addr`: the node's write alias, told while it has a port for it.
    `member_ids`, of a leader, are the node ids of all members of the group, joined by commas.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = msgspec.field(name="bodyCrc32", default=0)
    topics_complete: bool = False
    node_id: str | None = None
    alias_number: Int32 | None = None
    alias_addr: str | None = None
    member_ids: str | None = None


class RegisterBrokerResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Tells a follower who leads its group. `accepts_topic_changes` is our own: later changes may come by themselves,
    by 20005.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    accepts_topic_changes: bool | None = None


class BrokerHeartbeatHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Keeps a registered node alive (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None


class QueryDataVersionResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Whether a node must register its topics again."""

    changed: bool


class BrokerNameHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Takes the write permission from all topics of a broker group (205), gives it back (327), or names the absent
    group to forget (20003)."""

    broker_name: str


class BrokerMemberGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The nodes of one broker group (901)."""

    cluster_name: str
    broker_name: str


class IncludeAbsentHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for what absent broker groups hold too: those that a name server has met and that have no node now.

    Ours read it beside the header of routes (105), cluster information (106) and the list of all topics (206); others
    do not know it. Such a group has no address in the answer.
    """

    include_absent: bool = False


class RouteHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The route of one topic (105); `accept_standard_json_only` asks for quoted keys whatever the client's version."""

    topic: str
    accept_standard_json_only: bool | None = None


class RouteWatchHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Long poll for a route change: comma-separated topics, the route version last seen, how long to wait at most.

    A `version` of 0 is answered at once. The answer's ext field `version` goes into the next watch.
    """

    topics: str
    version: Int64
    timeout_millis: Int64


class TopicInClusterHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Drops a topic's queues (216), those of one cluster only if it is named."""

    topic: str
    cluster_name: str | None = None


class ClusterHeader(msgspec.Struct, frozen=True, gc=False):
    """The topics of one cluster (224)."""

    cluster: str


class KVNamespaceHeader(msgspec.Struct, frozen=True, gc=False):
    """All configuration values of a namespace (219)."""

    namespace: str


class KVKeyHeader(msgspec.Struct, frozen=True, gc=False):
    """One configuration value: reads (101) or deletes it (102)."""

    namespace: str
    key: str


class PutKVHeader(msgspec.Struct, frozen=True, gc=False):
    """Stores a configuration value (100)."""

    namespace: str
    key: str
    value: str
