"""Request codes of name servers that anybody may ask, with access control too: what is only read.

Clients do not sign them, as RocketMQ's do not: who listens, or a name server that is somebody else's, could send what
an administrator has signed to a broker, as another request.
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
"""What anybody may ask. Every other code, also one that is served tomorrow, needs the key file."""
