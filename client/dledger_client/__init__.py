"""The client: producers, consumers and administration over RocketMQ's remoting protocol, asyncio first.

All code that talks to name servers and brokers from outside is here; nothing here knows the inside of a broker. Start
with `producer` and `consumer`. `sync` has the same for programs without an event loop, `testing` a cluster of real
processes for tests. Below them are `core` (the parts that all share), `leaders` (the leader of each group), `routes`
and `connection`.
"""

from __future__ import annotations

from dledger_remoting.quotas import Quota, QuotaRow
from dledger_remoting.retry_policies import CustomizedRetryPolicy, ExponentialRetryPolicy, GroupRetryPolicy
from dledger_remoting.signatures import Credentials
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig

from .accounts import AccessRule, AccountAdmin, AccountInfo
from .admin import Admin
from .consumer import PushConsumer
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
from .flow import FlowReason
from .groups import GroupMember, QueueReader, QueueStatus, RunningConsumer
from .handling import Handler
from .interception import Interceptor
from .messages import Codec, DecodeError, Message, MessageQueue, ReceivedMessage, Settlement
from .node_calls import ConnectedProducer
from .offers import Priority
from .offsets import StartFrom
from .orderly import OrderlyConsumer
from .producer import Producer
from .pull import PullConsumer
from .rebalance import (
    Strategy,
    allocate_average,
    allocate_by_config,
    allocate_circle,
    allocate_consistent_hash,
)
from .replies import Reply
from .results import SendResult
from .routes import TopicRoute
from .simple import SimpleConsumer
from .stalls import QueueStall
from .subscriptions import ClassFilter, Filter, Sql
from .sync import SyncConsumer
from .sync_admin import SyncAdmin
from .sync_producer import SyncProducer
from .sync_pull import SyncPullConsumer
from .sync_simple import SyncSimpleConsumer
from .sync_transactions import SyncTransactionProducer
from .tls import Tls
from .topic_statistics import QueueRange, TopicStatistics
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
    "Credentials",
    "CustomizedRetryPolicy",
    "DeadlineError",
    "Decision",
    "DecodeError",
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
    "ReceivedMessage",
    "RefusedError",
    "Reply",
    "RequestTimeoutError",
    "RunningConsumer",
    "SendError",
    "SendResult",
    "Settlement",
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
