"""Routes and cluster information: a name server's answers to 105 and 106.

Clients before 4.9.4 get fastjson's text with unquoted integer keys, the others plain JSON. Some Go clients split the
text at `,` and `:`, so there is never white space. Fields and entries are sorted, so that equal routes are equal bytes.
Format: RocketMQ's `TopicRouteData`, `ClusterInfo`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .bodies import decode_fastjson_body
from .codes import STANDARD_JSON_VERSION
from .fastjson import encode_fastjson
from .integers import Int32, Int64

MASTER_ID: Final = 0
"""The broker id of a group's leader. Producers send to no other node."""

ALIAS_MARK: Final = "@n"
"""Mark in the names of write aliases. No broker group's name contains it."""


class QueueData(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """The queues of a topic in one broker group.

    `topic_created`, which is ours, tells this creation of the topic from others. Stock clients are not told.
    """

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0
    topic_created: Int64 | None = None


class BrokerData(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The addresses of a broker group's nodes by broker id."""

    broker_name: str
    cluster: str = ""
    broker_addrs: dict[int, str] = {}
    enable_acting_master: bool = False


class TopicRouteData(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Route of a topic. `order_topic_conf` is set for globally ordered topics only."""

    queue_datas: list[QueueData] = []
    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None


class RefusedGroup(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A broker group that a name server refuses, because another group of that name is registered. Ours."""

    cluster: str
    address: str
    identity: str = ""


class ClusterInfo(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """All broker groups, and their names by cluster.

    `refused_groups`, by name, is ours; it is None if the name server does not send it.
    """

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}
    refused_groups: dict[str, RefusedGroup] | None = None


class BrokerMemberGroup(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Nodes of one broker group by broker id."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]


class BrokerMemberGroupBody(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Answer to 901."""

    broker_member_group: BrokerMemberGroup


def wants_standard_json(version: int, accept_standard_json_only: bool | None) -> bool:
    """Return whether a client gets plain JSON: from 4.9.4 on, or if it asks for it."""
    return version >= STANDARD_JSON_VERSION or bool(accept_standard_json_only)


def alias_name(broker_group: str, number: int) -> str:
    """Return the broker name of a group's write alias.

    An alias is a port of one node that takes sends for the whole group.
    """
    return f"{broker_group}{ALIAS_MARK}{number}"


def is_alias(broker_name: str) -> bool:
    """Return whether a broker name is a write alias, and not a group."""
    return ALIAS_MARK in broker_name


def without_aliases(route: TopicRouteData) -> TopicRouteData:
    """Return a route without its write aliases."""
    return msgspec.structs.replace(
        route,
        queue_datas=[queues for queues in route.queue_datas if not is_alias(queues.broker_name)],
        broker_datas=[group for group in route.broker_datas if not is_alias(group.broker_name)],
    )


def _sort_key(broker_name: str) -> tuple[bool, str]:
    return is_alias(broker_name), broker_name


def encode_route(route: TopicRouteData, standard: bool) -> bytes:
    """Encode a route in plain JSON or in fastjson's dialect, sorted by broker name.

    Write aliases come last, because tools use the first broker among the cluster's groups.
    """
    ordered = msgspec.structs.replace(
        route,
        queue_datas=sorted(route.queue_datas, key=lambda queues: _sort_key(queues.broker_name)),
        broker_datas=sorted(route.broker_datas, key=lambda group: _sort_key(group.broker_name)),
    )
    return encode_fastjson(ordered, standard=standard)


def encode_cluster_info(info: ClusterInfo, standard: bool) -> bytes:
    """Encode cluster information in plain JSON or in fastjson's dialect."""
    clusters = {cluster: sorted(names) for cluster, names in info.cluster_addr_table.items()}
    return encode_fastjson(msgspec.structs.replace(info, cluster_addr_table=clusters), standard=standard)


def decode_route(body: bytes) -> TopicRouteData:
    """Decode a route in either dialect. Raises `BodyError`."""
    return decode_fastjson_body(TopicRouteData, body)


def decode_cluster_info(body: bytes) -> ClusterInfo:
    """Decode cluster information in either dialect. Raises `BodyError`."""
    return decode_fastjson_body(ClusterInfo, body)
