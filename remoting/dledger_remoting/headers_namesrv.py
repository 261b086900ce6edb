"""Headers of requests to a name server: codes 100-106, 205, 216, 219, 224, 322, 327, 901, 904, ours from 20001 on."""

from __future__ import annotations

import msgspec

from .integers import Int32, Int64


class BrokerNodeHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names one node of a broker group, to unregister it (104), compare its data version (322) or change its topics
    (20005).

    `state_version` is ours: the Raft term in which the node sends the request. A late unregistration of an older term
    cannot remove what the node registered in a newer one.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64
    state_version: Int64 | None = None


class RegisterBrokerHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Registers one node (103). The node is dropped if it is silent for `heartbeat_timeout_millis`.

    `body_crc32` other than 0 must equal crc32(body) & 0x7fffffff. The body is `registration.RegisterBrokerBody`. The
    last fields are ours:

    - `topics_complete`: the body has all topics of the group, as of the body's data version.
    - `node_id`, `alias_number`, `alias_addr`: the node's write alias, sent while the node has a port for it.
    - `member_ids`: node ids of all members of the group, joined by commas. Only a leader sends them.
    - `group_identity`: distinguishes the group from others of the same name (`dledger_base.group_identity`). A node
      that does not know the identity yet leaves the field out.
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
    group_identity: str | None = None


class RegisterBrokerResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names the leader of its group to a follower.

    `accepts_topic_changes` is ours: the node may send later changes alone, by 20005.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    accepts_topic_changes: bool | None = None


class BrokerHeartbeatHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Keeps the registration of a node alive (904)."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None


class QueryDataVersionResponseHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Says whether a node must register its topics again."""

    changed: bool


class BrokerNameHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Names a broker group, to remove the write permission from all its topics (205), restore that (327), or forget the
    absent group (20003).
    """

    broker_name: str


class BrokerMemberGroupHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the nodes of one broker group (901)."""

    cluster_name: str
    broker_name: str


class IncludeAbsentHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks the name server to include absent broker groups: groups that it has known and that have no node now.

    It is ours, and is sent beside the header of routes (105), cluster information (106) and the list of all topics
    (206). Other name servers do not know it. An absent group has no address in the answer.
    """

    include_absent: bool = False


class RouteHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for the route of one topic (105).

    `accept_standard_json_only` asks for JSON with quoted keys, whatever the client's version.
    """

    topic: str
    accept_standard_json_only: bool | None = None


class RouteWatchHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Waits for a change of routes (20001): comma-separated topics, the version last seen, the maximum wait in ms.

    A `version` of 0 is answered at once. The client sends the answer's ext field `version` in its next watch.
    """

    topics: str
    version: Int64
    timeout_millis: Int64


class TopicInClusterHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Drops a topic's queues (216): the queues of one cluster if it is named, else all queues."""

    topic: str
    cluster_name: str | None = None


class ClusterHeader(msgspec.Struct, frozen=True, gc=False):
    """Asks for the topics of one cluster (224)."""

    cluster: str


class KVNamespaceHeader(msgspec.Struct, frozen=True, gc=False):
    """Asks for all configuration values of a namespace (219)."""

    namespace: str


class KVKeyHeader(msgspec.Struct, frozen=True, gc=False):
    """Names one configuration value, to read it (101) or delete it (102)."""

    namespace: str
    key: str


class PutKVHeader(msgspec.Struct, frozen=True, gc=False):
    """Stores a configuration value (100)."""

    namespace: str
    key: str
    value: str
