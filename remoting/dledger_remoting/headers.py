"""Request and response headers as typed structs; `decode_ext` reads one from ext fields, `encode_ext` writes it.

Field names on the wire are the camel case of the attribute names unless a field says otherwise. The structs live in
modules by family (`headers_send`, `headers_consume`, `headers_query`, `headers_range`, `headers_admin`,
`headers_namesrv`, `headers_replies`, `headers_transactions`), and this module exports them. It does not export
`headers_pop`, nor `hotpath`, which holds the fast forms of sends and pulls. Field names and types: RocketMQ's
`CommandCustomHeader` classes.
"""

from __future__ import annotations

from .header_codec import decode_ext, encode_ext
from .headers_admin import (
    ConsumeDirectlyHeader,
    ConsumerRunningInfoHeader,
    CreateTopicHeader,
    DeleteSubscriptionGroupHeader,
    DeleteTopicHeader,
    GroupHeader,
    GroupsConsumeStatsHeader,
    ProducerGroupHeader,
    StatsHeader,
    TopicHeader,
    TopicOfGroupHeader,
)
from .headers_consume import (
    ConsumerGroupHeader,
    ConsumeStatsHeader,
    OffsetResponseHeader,
    PullMessageHeader,
    PullResponseHeader,
    QueryConsumerOffsetHeader,
    UnregisterClientHeader,
    UpdateConsumerOffsetHeader,
)
from .headers_namesrv import (
    BrokerHeartbeatHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    BrokerNodeHeader,
    ClusterHeader,
    IncludeAbsentHeader,
    KVKeyHeader,
    KVNamespaceHeader,
    PutKVHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    RouteHeader,
    RouteWatchHeader,
    TopicInClusterHeader,
)
from .headers_query import (
    MaxOffsetHeader,
    QueryConsumeQueueHeader,
    QueryMessageHeader,
    QueryMessageResponseHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResponseHeader,
    ViewMessageHeader,
)
from .headers_range import (
    PinHeader,
    PinNameHeader,
    PinResponseHeader,
    ReadCommitResponseHeader,
    ReadPlanHeader,
    ReadRangeHeader,
    ReadRangeResponseHeader,
)
from .headers_replies import PushReplyHeader
from .headers_send import (
    ConsumerSendBackHeader,
    RecallMessageHeader,
    RecallMessageResponseHeader,
    SendMessageHeader,
    SendMessageResponseHeader,
)
from .headers_transactions import (
    CheckTransactionHeader,
    EndTransactionHeader,
    ResumeHalfHeader,
)

__all__ = [
    "BrokerHeartbeatHeader",
    "BrokerMemberGroupHeader",
    "BrokerNameHeader",
    "BrokerNodeHeader",
    "CheckTransactionHeader",
    "ClusterHeader",
    "ConsumeDirectlyHeader",
    "ConsumeStatsHeader",
    "ConsumerGroupHeader",
    "ConsumerRunningInfoHeader",
    "ConsumerSendBackHeader",
    "CreateTopicHeader",
    "DeleteSubscriptionGroupHeader",
    "DeleteTopicHeader",
    "EndTransactionHeader",
    "GroupHeader",
    "GroupsConsumeStatsHeader",
    "IncludeAbsentHeader",
    "KVKeyHeader",
    "KVNamespaceHeader",
    "MaxOffsetHeader",
    "OffsetResponseHeader",
    "PinHeader",
    "PinNameHeader",
    "PinResponseHeader",
    "ProducerGroupHeader",
    "PullMessageHeader",
    "PullResponseHeader",
    "PushReplyHeader",
    "PutKVHeader",
    "QueryConsumeQueueHeader",
    "QueryConsumerOffsetHeader",
    "QueryDataVersionResponseHeader",
    "QueryMessageHeader",
    "QueryMessageResponseHeader",
    "QueueHeader",
    "ReadCommitResponseHeader",
    "ReadPlanHeader",
    "ReadRangeHeader",
    "ReadRangeResponseHeader",
    "RecallMessageHeader",
    "RecallMessageResponseHeader",
    "RegisterBrokerHeader",
    "RegisterBrokerResponseHeader",
    "ResumeHalfHeader",
    "RouteHeader",
    "RouteWatchHeader",
    "SearchOffsetHeader",
    "SendMessageHeader",
    "SendMessageResponseHeader",
    "StatsHeader",
    "TimestampResponseHeader",
    "TopicHeader",
    "TopicInClusterHeader",
    "TopicOfGroupHeader",
    "UnregisterClientHeader",
    "UpdateConsumerOffsetHeader",
    "ViewMessageHeader",
    "decode_ext",
    "encode_ext",
]
