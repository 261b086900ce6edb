"""Bodies about a broker's topics, producers and counters: 202, 204, 300, 303, 315, 321, 328, 345.

Format: RocketMQ's `TopicStatsTable`, `ProducerConnection`, `GroupList`, `QueryConsumeTimeSpanBody`, `BrokerStatsData`,
`QueryConsumeQueueResponseBody`, `ProducerTableInfo` and `QuerySubscriptionResponseBody`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from .bodies import decode_body, decode_fastjson_body
from .fastjson import FastJsonValue, encode_fastjson
from .heartbeat import SubscriptionData
from .integers import Int32, Int64
from .topics import MessageQueue


class QueueRange(msgspec.Struct, frozen=True, rename="camel"):
    """Content of a queue: first kept offset, next offset, and the store time in ms of its newest message, 0 for
    none.
    """

    last_update_timestamp: Int64
    max_offset: Int64
    min_offset: Int64


class _TopicStats(msgspec.Struct, frozen=True, rename="camel"):
    offset_table: dict[str, QueueRange] = {}
    topic_put_tps: float = 0.0


def encode_topic_stats(ranges: Mapping[MessageQueue, QueueRange], put_tps: float) -> bytes:
    """Encode the answer to 202, with objects as keys; `put_tps` is in messages a second."""
    table: dict[msgspec.Struct, FastJsonValue] = {queue: row for queue, row in ranges.items()}  # noqa: C416 - keys widen
    body: dict[str, FastJsonValue] = {"offsetTable": table, "topicPutTps": put_tps}
    return encode_fastjson(body)


def decode_topic_stats(body: bytes) -> tuple[dict[MessageQueue, QueueRange], float]:
    """Decode an answer to 202: the table, and messages a second. Raises `BodyError`."""
    stats = decode_fastjson_body(_TopicStats, body)
    table = {decode_body(MessageQueue, key.encode()): queue_range for key, queue_range in stats.offset_table.items()}
    return table, stats.topic_put_tps


class GroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Consumer groups of a topic: answer to 300."""

    group_list: list[str]


class QueueTimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    """Store times in ms of a queue's first, newest and last consumed message, -1 if that message does not exist.

    `delay_time` is the age in ms of the first message that is not consumed, 0 for none.
    """

    consume_time_stamp: Int64
    delay_time: Int64
    max_time_stamp: Int64
    message_queue: MessageQueue
    min_time_stamp: Int64


class ConsumeTimeSpans(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 303."""

    consume_time_span_set: list[QueueTimeSpan]


class ClientConnection(msgspec.Struct, frozen=True, rename="camel"):
    """One client of a producer group."""

    client_addr: str
    client_id: str
    language: str
    version: Int32 = 0


class ProducerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Clients of a producer group: answer to 204."""

    connection_set: list[ClientConnection]


class ProducerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One client of a producer group; `last_update_timestamp` is the time of its last heartbeat in ms.

    `remote_ip` is its address behind a slash, as Java writes addresses.
    """

    client_id: str
    language: str
    last_update_timestamp: Int64
    remote_ip: str = msgspec.field(name="remoteIP")
    version: Int32 = 0


class ProducerTable(msgspec.Struct, frozen=True):
    """Clients by producer group: answer to 328."""

    data: dict[str, list[ProducerInfo]]


class CountedSum(msgspec.Struct, frozen=True):
    """Sum of what was counted in a period: in total, per second (`tps`), and on average per addition (`avgpt`)."""

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStats(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of the last minute, hour and day, as far as samples reach: answer to 315."""

    stats_day: CountedSum = CountedSum()
    stats_hour: CountedSum = CountedSum()
    stats_minute: CountedSum = CountedSum()


class QueueUnit(msgspec.Struct, frozen=True, rename="camel"):
    """An index unit of a consume queue in RocketMQ's form: a record's position in the log, its size, its tag code."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool = False
    """True if RocketMQ has tried a filter on the record. Our broker tries none, so it sends false."""


class QueueUnits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Answer to 321: index units, the queue's first kept offset (`min`), and its next offset (`max`).

    `subscription_data` is the subscription of the named group's members, if there are any. `filter_data` is then the
    text `null`, because RocketMQ puts its compiled filter there and we have none. Otherwise it says that the group is
    not online. Without a named group both are left out.
    """

    max_queue_index: Int64
    min_queue_index: Int64
    queue_data: list[QueueUnit]
    filter_data: str | None = None
    subscription_data: SubscriptionData | None = None


class SubscriptionOfGroup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Answer to 345. `subscription_data` is left out if no member of the group subscribes to the topic."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
