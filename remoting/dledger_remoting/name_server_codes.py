"""Request codes of name servers that need no signature, even with access control: requests that only read.

Clients do not sign them, nor do RocketMQ's. Someone who listens, or runs a foreign name server, could otherwise send an
administrator's signed request to a broker, as another request.
"""

from __future__ import annotations

from typing import Final

from .codes import RequestCode

OPEN_CODES: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.DLEDGER_ROUTE_WATCH,
    }
)
"""Codes that need no signature. Every other code needs the key file, including codes that are added later."""
