"""Names, permissions and configuration of topics and consumer groups.

Values and defaults: RocketMQ's `MixAll`, `TopicValidator`, `TopicConfig`, `SubscriptionGroupConfig`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from .errors import InvalidParameter, NoPermission
from .integers import Int32, Int64
from .retry_policies import GroupRetryPolicy

PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
PERM_READ_WRITE: Final = PERM_READ | PERM_WRITE
MAX_PERM: Final = PERM_READ | PERM_WRITE | PERM_INHERIT

TOPIC_UNIT: Final = 1
TOPIC_UNIT_SUB: Final = 2
"""Bits of `TopicConfig.topic_sys_flag`."""

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
TRANSACTION_TOPIC_PREFIX: Final = "RMQ_SYS_TRANS_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        BENCHMARK_TOPIC,
        OFFSET_MOVED_TOPIC,
        "CHECKPOINT_TOPIC",
    }
)

_SEND_FORBIDDEN_TOPICS: Final = frozenset({SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC})
_BROKER_WRITTEN_TOPICS: Final = frozenset({SCHEDULE_TOPIC, CHECK_MAX_TIME_TOPIC})
_BROKER_WRITTEN_PREFIXES: Final = (SYSTEM_TOPIC_PREFIX, TRANSACTION_TOPIC_PREFIX)

SYSTEM_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
        "DEFAULT_CONSUMER",
        "SCHEDULE_CONSUMER",
    }
)
"""Consumer groups that exist without being created."""

IDEMPOTENT_ATTRIBUTE: Final = "idempotent"
"""Attribute of a topic, ours, that makes all sends to it idempotent if it is `true`."""

WRITE_ALIASES_ATTRIBUTE: Final = "write.aliases"
"""Attribute of a topic, ours: `true` or `false`.

If `true`, the topic's route also lists write aliases (`route.alias_name`).
"""
CREATED_ATTRIBUTE: Final = "dledger.created"
"""Attribute by which brokers tell name servers which creation of a topic they have. No topic keeps it."""

MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
"""Attribute of a topic, RocketMQ 5's: the kind of messages that the topic is for."""
FIFO_MESSAGE_TYPE: Final = "FIFO"
"""Kind of messages that have an order."""

DEFAULT_TOPIC_QUEUES: Final = 8
"""Default number of a topic's queues on each broker group, that of RocketMQ's `updateTopic` and brokers.

When a send creates the topic, RocketMQ's clients ask for 4 queues, ours for this number.
"""

MAX_TOPIC_CHARS: Final = 127
MAX_DERIVED_TOPIC_CHARS: Final = 255
"""Maximum length of the names of retry and dead letter topics in characters: a group's name with a prefix."""
MAX_GROUP_CHARS: Final = 120

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel", gc=False):
    """One queue of a topic in one broker group. Fields are in the alphabetical order of the wire."""

    broker_name: str
    queue_id: Int32
    topic: str


class TopicConfig(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Configuration of a topic in brokers and name servers.

    `attributes` holds settings that 5.x added, such as `message.type`.
    """

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] = {}


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Configuration of a consumer group. After `retry_max_times` deliveries beside the first, a message is a dead
    letter.

    If there is no retry policy, the field is absent in JSON and in a broker's state. Builds without retry policies thus
    have the same state.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    attributes: dict[str, str] = {}
    group_retry_policy: GroupRetryPolicy | msgspec.UnsetType | None = msgspec.UNSET


def is_ordered(topic: TopicConfig) -> bool:
    """Return whether the order of a queue's messages counts in this topic, so that a key must keep its queue.

    `updateTopic -o true` sets the flag; `updateTopic -a +message.type=FIFO`, as RocketMQ 5 has it, leaves it false.
    """
    return topic.order or topic.attributes.get(MESSAGE_TYPE_ATTRIBUTE) == FIFO_MESSAGE_TYPE


def is_readable(perm: int) -> bool:
    """Return whether consumers may read."""
    return bool(perm & PERM_READ)


def is_writable(perm: int) -> bool:
    """Return whether producers may write."""
    return bool(perm & PERM_WRITE)


def is_inherited(perm: int) -> bool:
    """Return whether this topic is a template: topics may be created automatically after it."""
    return bool(perm & PERM_INHERIT)


def retry_topic(group: str) -> str:
    """Return the topic in which messages of a group wait for another delivery."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic for messages that a group failed to consume too often."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic of replies in a cluster."""
    return f"{cluster}_REPLY_TOPIC"


def is_retry_topic(topic: str) -> bool:
    """Return whether a topic is a retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_dead_letter_topic(topic: str) -> bool:
    """Return whether a topic is a dead letter topic."""
    return topic.startswith(DLQ_PREFIX)


def is_broker_written(topic: str) -> bool:
    """Return whether only the broker itself writes and reads a topic.

    Messages in such a topic wait until they are due, or until their transaction commits. Then they are stored in
    another topic.
    """
    return topic in _BROKER_WRITTEN_TOPICS or topic.startswith(_BROKER_WRITTEN_PREFIXES)


def require_readable(topic: str) -> None:
    """Raise `NoPermission` if clients may not read or search the messages of a topic."""
    if is_broker_written(topic):
        raise NoPermission(f"topic {topic} is the broker's own, which only it reads: ask for another one")


def is_send_forbidden(topic: str) -> bool:
    """Return whether clients may not send to a topic."""
    return topic in _SEND_FORBIDDEN_TOPICS or is_broker_written(topic)


def is_system_topic(topic: str) -> bool:
    """Return whether a topic belongs to the service. Users can neither create nor delete such a topic."""
    return topic in SYSTEM_TOPICS or is_broker_written(topic)


def is_system_group(group: str) -> bool:
    """Return whether a consumer group exists without being created."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def validate_topic(topic: str) -> None:
    """Raise `InvalidParameter` with what to change if `topic` is not a valid topic name."""
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        raise InvalidParameter(
            f"topic {topic[:MAX_TOPIC_CHARS]} names a light message queue, which there are none of here: choose a name "
            f"without {LIGHT_QUEUE_PREFIX}"
        )
    limit = MAX_DERIVED_TOPIC_CHARS if is_retry_topic(topic) or is_dead_letter_topic(topic) else MAX_TOPIC_CHARS
    _validate_name("topic", topic, limit)


def validate_group(group: str) -> None:
    """Raise `InvalidParameter` with what to change if `group` is not a valid name of a producer or consumer group."""
    _validate_name("group", group, MAX_GROUP_CHARS)


def _validate_name(kind: str, name: str, limit: int) -> None:
    if not name.strip():
        raise InvalidParameter(f"the {kind} name is empty")
    if len(name) > limit:
        raise InvalidParameter(f"the {kind} name {name[:32]!r}... has {len(name)} characters, the limit is {limit}")
    if _NAME.fullmatch(name) is None:
        raise InvalidParameter(f"the {kind} name {name!r} may only contain a-z A-Z 0-9 _ - % |")
