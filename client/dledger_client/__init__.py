"""The client: producers, consumers and administration over RocketMQ's remoting protocol, asyncio first.

All code that talks to name servers and brokers from outside is here; nothing here knows the inside of a broker. Modules
of this folder are what an application uses: start with `producer` and `consumer`. `sync` has the same for programs
without an event loop, `testing` a cluster of real processes for tests.

Packages hold the parts: `cluster` (connections, routes, leaders), `sending`, `consuming` and `administration`.
"""

from __future__ import annotations

import sys
from typing import Final

from dledger_remoting.quotas import Quota, QuotaRow
from dledger_remoting.retry_policies import CustomizedRetryPolicy, ExponentialRetryPolicy, GroupRetryPolicy
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

from .accounts import AccessRule, AccountAdmin, AccountInfo
from .admin import Admin
from .administration.groups import GroupMember, QueueReader, QueueStatus, RunningConsumer
from .administration.node_calls import ConnectedProducer
from .administration.topic_statistics import QueueRange, TopicStatistics
from .cluster.routes import TopicRoute
from .consumer import PushConsumer
from .consuming.flow import FlowReason, ReadAhead
from .consuming.handling import Handler
from .consuming.offers import Priority
from .consuming.offsets import StartFrom
from .consuming.rebalance import (
    Strategy,
    allocate_average,
    allocate_by_config,
    allocate_circle,
    allocate_consistent_hash,
)
from .consuming.stalls import QueueStall
from .errors import (
    ClientClosedError,
    ClientError,
    ConcurrentUseError,
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    GroupInUseError,
    InvalidArgumentError,
    NoBrokerError,
    NoNameServerError,
    NoRouteError,
    NotFoundError,
    RefusedError,
    RequestTimeoutError,
    SendError,
    SilentServerError,
    TlsError,
    WrongServerError,
)
from .interception import Interceptor
from .messages import Codec, DecodeError, Message, MessageQueue, ReceivedMessage, Settlement
from .orderly import OrderlyConsumer
from .producer import Producer
from .pull import PullConsumer
from .replies import Reply
from .results import SendResult
from .settings import ConsumerSettings, Delivery, Sharing, TimeLimits
from .simple import SimpleConsumer
from .subscriptions import ClassFilter, Filter, Sql
from .sync import (
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
)
from .tls import Tls
from .transactions import Check, Decision, OpenTransaction, SyncCheck, TransactionProducer

__all__ = [
    "AccessRule",
    "AccountAdmin",
    "AccountInfo",
    "Admin",
    "Check",
    "ClassFilter",
    "ClientClosedError",
    "ClientError",
    "Codec",
    "ConcurrentUseError",
    "ConnectError",
    "ConnectedProducer",
    "ConnectionLostError",
    "ConsumerSettings",
    "Credentials",
    "CustomizedRetryPolicy",
    "DeadlineError",
    "Decision",
    "DecodeError",
    "Delivery",
    "ExponentialRetryPolicy",
    "Filter",
    "FlowReason",
    "GroupInUseError",
    "GroupMember",
    "GroupRetryPolicy",
    "Handler",
    "Interceptor",
    "InvalidArgumentError",
    "Message",
    "MessageQueue",
    "NoBrokerError",
    "NoNameServerError",
    "NoRouteError",
    "NotFoundError",
    "OpenTransaction",
    "OrderlyConsumer",
    "Priority",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueRange",
    "QueueReader",
    "QueueStall",
    "QueueStatus",
    "Quota",
    "QuotaRow",
    "ReadAhead",
    "ReceivedMessage",
    "RefusedError",
    "Reply",
    "RequestTimeoutError",
    "RunningConsumer",
    "SendError",
    "SendResult",
    "Settlement",
    "Sharing",
    "SilentServerError",
    "SimpleConsumer",
    "Sql",
    "StartFrom",
    "Strategy",
    "SubscriptionGroupConfig",
    "SyncAdmin",
    "SyncCheck",
    "SyncConsumer",
    "SyncProducer",
    "SyncPullConsumer",
    "SyncSimpleConsumer",
    "SyncTransactionProducer",
    "TimeLimits",
    "Tls",
    "TlsError",
    "TopicConfig",
    "TopicRoute",
    "TopicStatistics",
    "TransactionProducer",
    "WrongServerError",
    "allocate_average",
    "allocate_by_config",
    "allocate_circle",
    "allocate_consistent_hash",
]

_EARLIER_PATHS: Final = {
    "flow": "consuming.flow",
    "groups": "administration.groups",
    "handling": "consuming.handling",
    "offers": "consuming.offers",
    "offsets": "consuming.offsets",
    "rebalance": "consuming.rebalance",
    "routes": "cluster.routes",
    "stalls": "consuming.stalls",
    "surroundings": "cluster.surroundings",
    "sync_admin": "sync.admin",
    "sync_producer": "sync.producer",
    "sync_pull": "sync.pull",
    "sync_simple": "sync.simple",
    "sync_transactions": "sync.transactions",
    "topic_statistics": "administration.topic_statistics",
}
"""Modules with public names, by the paths at which programs that know them from earlier versions import them."""

for _earlier, _path in _EARLIER_PATHS.items():
    globals()[_earlier] = sys.modules[f"{__name__}.{_earlier}"] = sys.modules[f"{__name__}.{_path}"]
