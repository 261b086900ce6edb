"""Bodies that tell of a broker's topics and producers, and of what was counted: 202, 204, 300, 303, 315, 321,
328, 345.

RocketMQ's `TopicStatsTable`, `ProducerConnection`, `GroupList`, `QueryConsumeTimeSpanBody`, `BrokerStatsData`,
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
    """What a queue holds: first kept offset, next one, and the store time, ms, of its newest message, 0 for none."""

    last_update_timestamp: Int64
    max_offset: Int64
    min_offset: Int64


class _TopicStats(msgspec.Struct, frozen=True, rename="camel"):
    offset_table: dict[str, QueueRange] = {}
    topic_put_tps: float = 0.0


def encode_topic_stats(ranges: Mapping[MessageQueue, QueueRange], put_tps: float) -> bytes:
    """The answer to 202, with objects as keys; `put_tps` is in messages a second."""
    table: dict[msgspec.Struct, FastJsonValue] = {queue: one for queue, one in ranges.items()}  # noqa: C416 - keys widen
    body: dict[str, FastJsonValue] = {"offsetTable": table, "topicPutTps": put_tps}
    return encode_fastjson(body)


def decode_topic_stats(body: bytes) -> tuple[dict[MessageQueue, QueueRange], float]:
    """The table of an answer to 202, and messages a second. Raises `BodyError`."""
    stats = decode_fastjson_body(_TopicStats, body)
    table = {decode_body(MessageQueue, key.encode()): one for key, one in stats.offset_table.items()}
    return table, stats.topic_put_tps


class GroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Consumer groups of a topic: the answer to 300."""

    group_list: list[str]


class QueueTimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    """Store times, ms, of the first and the newest message of a queue and of the last one consumed, -1 for none;
    `delay_time` is the age, ms, of the first message that is not consumed, 0 for none.
    """

    consume_time_stamp: Int64
    delay_time: Int64
    max_time_stamp: Int64
    message_queue: MessageQueue
    min_time_stamp: Int64


class ConsumeTimeSpans(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to 303."""

    consume_time_span_set: list[QueueTimeSpan]


class ClientConnection(msgspec.Struct, frozen=True, rename="camel"):
    """One client of a producer group."""

    client_addr: str
    client_id: str
    language: str
    version: Int32 = 0


class ProducerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """The clients of a producer group: the answer to 204."""

    connection_set: list[ClientConnection]


class ProducerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One client of a producer group; `last_update_timestamp` is the time of its last heartbeat, ms.

    `remote_ip` is its address behind a slash, as Java writes one.
    """

    client_id: str
    language: str
    last_update_timestamp: Int64
    remote_ip: str = msgspec.field(name="remoteIP")
    version: Int32 = 0


class ProducerTable(msgspec.Struct, frozen=True):
    """Clients by producer group: the answer to 328."""

    data: dict[str, list[ProducerInfo]]


class CountedSum(msgspec.Struct, frozen=True):
    """What was counted in a time: the sum, how much of it a second, and how much each time that it was counted."""

    avgpt: float = 0.0
    sum: Int64 = 0
    tps: float = 0.0


class BrokerStats(msgspec.Struct, frozen=True, rename="camel"):
    """What was counted in the last minute, hour and day, as far as samples reach: the answer to 315."""

    stats_day: CountedSum = CountedSum()
    stats_hour: CountedSum = CountedSum()
    stats_minute: CountedSum = CountedSum()


class QueueUnit(msgspec.Struct, frozen=True, rename="camel"):
    """A unit of a consume queue: where a record stands in the log, its size, its tag code; RocketMQ writes it so."""

    physic_offset: Int64
    physic_size: Int32
    tags_code: Int64
    eval: bool = False
    """Whether a filter was tried on it, which none is here."""


class QueueUnits(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer to 321: units, and from which offset to which there are some.

    `subscription_data` is what members of the group that was named subscribe to, and `filter_data` then the text
    `null`: RocketMQ tells there what it has computed for a filter. Of a group without such members it says so.
    """

    max_queue_index: Int64
    min_queue_index: Int64
    queue_data: list[QueueUnit]
    filter_data: str | None = None
    subscription_data: SubscriptionData | None = None


class SubscriptionOfGroup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer to 345; no `subscription_data` without members that subscribe to the topic."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None
