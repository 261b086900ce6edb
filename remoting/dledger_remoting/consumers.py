"""Bodies that tell of a consumer group: its members (203), how far it is (208, 317), who reads its queues (20004).

RocketMQ's `ConsumerConnection` and `ConsumeStats`. What has no counterpart there says so; other clients skip it.
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
    """One member of a group. `subscriptions`, which is ours, are its own: expressions by topic."""

    client_id: str
    client_addr: str
    language: str
    version: Int32 = 0
    subscriptions: dict[str, str] = {}


class ConsumerConnection(msgspec.Struct, frozen=True, rename="camel"):
    """The members of a group and the newest subscription to each topic that one of them has: the answer to 203."""

    connection_set: list[MemberConnection]
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET

    @classmethod
    def of(cls, members: list[MemberConnection], consumers: list[ConsumerData]) -> ConsumerConnection:
        """Put together what the members say of the group, of which there is at least one."""
        newest: dict[str, SubscriptionData] = {}
        for consumer in consumers:
            for entry in consumer.subscription_data_set:
                known = newest.get(entry.topic)
                if known is None or entry.sub_version > known.sub_version:
                    newest[entry.topic] = entry
        first = consumers[0]
        return cls(members, newest, first.consume_type, first.message_model, first.consume_from_where)


class QueueProgress(msgspec.Struct, frozen=True, rename="camel"):
    """How far a group is in a queue whose next message gets `broker_offset`; `consumer_offset` is 0 without a commit.

    `pull_offset` is up to where it has pulled, from the node that tells; at least what it has committed.
    `last_timestamp` is the store time of the last consumed message, 0 if it is not known. The last two are ours: the
    first kept offset, and whether the group has committed.
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
    """Who asked a node last for messages of a queue: the ids that use the connection, none if nobody on it heartbeats.

    `idle_millis` have passed since; a long poll waits so long.
    """

    topic: str
    queue_id: Int32
    client_ids: list[str]
    client_addr: str
    idle_millis: Int64


class QueueReaders(msgspec.Struct, frozen=True):
    """The answer to 20004."""

    readers: list[QueueReader]


class TopicProgress(NamedTuple):
    """How far a group is in the queues of one topic or several; it has got `tps` messages a second of late."""

    tps: float
    queues: Mapping[MessageQueue, QueueProgress]

    @property
    def lag(self) -> int:
        """Messages that it has not consumed."""
        return sum(one.broker_offset - one.consumer_offset for one in self.queues.values())

    @property
    def in_flight(self) -> int:
        """Messages that it has pulled, and not committed yet."""
        return sum(one.pull_offset - one.consumer_offset for one in self.queues.values())


def _consume_stats(progress: TopicProgress) -> dict[str, FastJsonValue]:
    table: dict[msgspec.Struct, FastJsonValue] = {queue: one for queue, one in progress.queues.items()}  # noqa: C416 - keys widen
    return {"consumeTps": progress.tps, "offsetTable": table}


def encode_consume_stats(queues: Mapping[MessageQueue, QueueProgress], tps: float = 0.0) -> bytes:
    """The answer to 208 with objects as keys, which RocketMQ's tools expect."""
    return encode_fastjson(_consume_stats(TopicProgress(tps, queues)))


def encode_groups_consume_stats(groups: Mapping[str, list[TopicProgress]], broker_address: str) -> bytes:
    """The answer to 317: how far each group is, topic by topic."""
    rows: list[FastJsonValue] = []
    for group, topics in groups.items():
        row: list[FastJsonValue] = [_consume_stats(one) for one in topics]
        rows.append({group: row})
    every = [one for topics in groups.values() for one in topics]
    body: dict[str, FastJsonValue] = {
        "brokerAddr": broker_address,
        "consumeStatsList": rows,
        "totalDiff": sum(one.lag for one in every),
        "totalInflightDiff": sum(one.in_flight for one in every),
    }
    return encode_fastjson(body)


def decode_consume_stats(body: bytes) -> dict[MessageQueue, QueueProgress]:
    """The table of an answer to 208. Raises `BodyError`."""
    table = decode_fastjson_body(_ConsumeStats, body).offset_table
    return {decode_body(MessageQueue, key.encode()): progress for key, progress in table.items()}
