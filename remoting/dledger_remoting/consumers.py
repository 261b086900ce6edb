"""Bodies about a consumer group: its members (203), its progress (208, 317), the readers of its queues (20004).

Format: RocketMQ's `ConsumerConnection` and `ConsumeStats`. Docstrings name the fields that are ours; other clients skip
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from .bodies import decode_body, decode_fastjson_body
from .fastjson import FastJsonValue, encode_fastjson
from .heartbeat import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel, SubscriptionData
from .integers import Int32, Int64
from .topics import MessageQueue


class MemberConnection(msgspec.Struct, frozen=True, rename="camel"):
    """One member of a group. `subscriptions`, which is ours, holds this member's own expressions by topic."""

    client_id: str
    client_addr: str
    language: str
    version: Int32 = 0
    subscriptions: dict[str, str] = {}


class ConsumerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """Answer to 203: the members of a group, and for each topic the newest subscription that a member has."""

    connection_set: list[MemberConnection]
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET

    @classmethod
    def of(cls, members: list[MemberConnection], consumers: list[ConsumerData]) -> ConsumerConnection:
        """Combine what the members of a group say. There must be at least one consumer."""
        newest: dict[str, SubscriptionData] = {}
        for consumer in consumers:
            for entry in consumer.subscription_data_set:
                known = newest.get(entry.topic)
                if known is None or entry.sub_version > known.sub_version:
                    newest[entry.topic] = entry
        first = consumers[0]
        return cls(members, newest, first.consume_type, first.message_model, first.consume_from_where)


class QueueProgress(msgspec.Struct, frozen=True, rename="camel"):
    """Progress of a group in one queue. `consumer_offset` is 0 without a commit; `broker_offset` is the next message's
    offset.

    `pull_offset` is the offset up to which the group has pulled from the node that answers, at least its committed
    offset. `last_timestamp` is the store time of the last consumed message, 0 if it is not known. Two fields are ours:
    `min_offset` is the first kept offset, and `committed` says whether the group has committed.
    """

    broker_offset: Int64
    consumer_offset: Int64
    pull_offset: Int64 = 0
    last_timestamp: Int64 = 0
    min_offset: Int64 = 0
    committed: bool = True


class _ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    consume_tps: float = 0.0
    offset_table: dict[str, QueueProgress] = {}


class QueueReader(msgspec.Struct, frozen=True, rename="camel"):
    """Client that last asked a node for messages of a queue.

    `client_ids` are the clients that use its connection, none if no client on it sends heartbeats. `idle_millis` have
    passed since its last request, which may be a waiting long poll.
    """

    topic: str
    queue_id: Int32
    client_ids: list[str]
    client_addr: str
    idle_millis: Int64


class QueueReaders(msgspec.Struct, frozen=True):
    """Answer to 20004."""

    readers: list[QueueReader]


class TopicProgress(NamedTuple):
    """Progress of a group in the queues of one or more topics. `tps` is its present rate in messages a second."""

    tps: float
    queues: Mapping[MessageQueue, QueueProgress]

    @property
    def lag(self) -> int:
        """Number of messages that the group has not consumed."""
        return sum(queue.broker_offset - queue.consumer_offset for queue in self.queues.values())

    @property
    def in_flight(self) -> int:
        """Number of messages that the group has pulled and not committed yet."""
        return sum(queue.pull_offset - queue.consumer_offset for queue in self.queues.values())


def _consume_stats(progress: TopicProgress) -> dict[str, FastJsonValue]:
    table: dict[msgspec.Struct, FastJsonValue] = {queue: row for queue, row in progress.queues.items()}  # noqa: C416 - keys widen
    return {"consumeTps": progress.tps, "offsetTable": table}


def encode_consume_stats(queues: Mapping[MessageQueue, QueueProgress], tps: float = 0.0) -> bytes:
    """Encode the answer to 208, with objects as keys, as RocketMQ's tools expect."""
    return encode_fastjson(_consume_stats(TopicProgress(tps, queues)))


def encode_groups_consume_stats(groups: Mapping[str, list[TopicProgress]], broker_address: str) -> bytes:
    """Encode the answer to 317: the progress of each group, topic by topic."""
    rows: list[FastJsonValue] = []
    for group, topics in groups.items():
        row: list[FastJsonValue] = [_consume_stats(topic_progress) for topic_progress in topics]
        rows.append({group: row})
    all_progress = [topic_progress for topics in groups.values() for topic_progress in topics]
    body: dict[str, FastJsonValue] = {
        "brokerAddr": broker_address,
        "consumeStatsList": rows,
        "totalDiff": sum(topic_progress.lag for topic_progress in all_progress),
        "totalInflightDiff": sum(topic_progress.in_flight for topic_progress in all_progress),
    }
    return encode_fastjson(body)


def decode_consume_stats(body: bytes) -> dict[MessageQueue, QueueProgress]:
    """Decode the table of an answer to 208. Raises `BodyError`."""
    table = decode_fastjson_body(_ConsumeStats, body).offset_table
    return {decode_body(MessageQueue, key.encode()): progress for key, progress in table.items()}
