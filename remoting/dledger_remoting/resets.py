"""Resets of consumer groups: headers and bodies of 220, 221, 222, 223 and 314.

Java's clients and tools read and write tables of queues with objects as keys, in fastjson's dialect; clients in C++
read a list instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from .bodies import decode_body, decode_fastjson_body
from .codes import LanguageCode
from .fastjson import FastJsonValue, encode_fastjson
from .integers import Int32, Int64, Offset
from .topics import MessageQueue

AT_END: Final = -1
"""A timestamp that means the end of a queue."""


class ResetOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Have a group go on elsewhere (222), or a consumer (220): in one queue, or in all if `queue_id` is -1.

    There it goes on at `offset`, if that is given and not -1, else at the first message stored at or after `timestamp`
    (ms since 1970; -1: at the end). Without `is_force` a group goes back only.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatusHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Where a consumer is in a topic (221), or the members of a group (223), of which `client_addr` may name one."""

    topic: str
    group: str
    client_addr: str | None = None


class CloneOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Have one group go on where another one is (314), in one topic or in all that it has offsets of.

    Unless `offline`, topics that no member of a live source group subscribes to are left out.
    """

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class _ResetTable(msgspec.Struct, frozen=True):
    offset_table: dict[str, Offset] = msgspec.field(name="offsetTable", default_factory=dict)


class _QueueOffset(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


class _ResetList(msgspec.Struct, frozen=True):
    offset_table: list[_QueueOffset] = msgspec.field(name="offsetTable", default_factory=list)


class _Status(msgspec.Struct, frozen=True):
    message_queue_table: dict[str, Int64] = msgspec.field(name="messageQueueTable", default_factory=dict)


class _Statuses(msgspec.Struct, frozen=True):
    consumer_table: dict[str, dict[str, Int64]] = msgspec.field(name="consumerTable", default_factory=dict)


def encode_reset(offsets: Mapping[MessageQueue, int], language: int = LanguageCode.JAVA) -> bytes:
    """The body of 220 for a client in a language, and of the answer to 222."""
    if language == LanguageCode.CPP:
        rows = [_QueueOffset(queue.broker_name, at, queue.queue_id, queue.topic) for queue, at in offsets.items()]
        return msgspec.json.encode(_ResetList(rows))
    return encode_fastjson({"offsetTable": _table(offsets)})


def decode_reset(body: bytes) -> dict[MessageQueue, int]:
    """What `encode_reset` wrote for Java. Raises `BodyError`."""
    return _queues(decode_fastjson_body(_ResetTable, body).offset_table)


def encode_status(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The answer to 221."""
    return encode_fastjson({"messageQueueTable": _table(offsets)})


def decode_status(body: bytes) -> dict[MessageQueue, int]:
    """What a client answers to 221. Raises `BodyError`."""
    return _queues(decode_fastjson_body(_Status, body).message_queue_table)


def encode_statuses(clients: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """The answer to 223."""
    table: dict[str, FastJsonValue] = {client_id: _table(offsets) for client_id, offsets in clients.items()}
    return encode_fastjson({"consumerTable": table, "messageQueueTable": {}})


def decode_statuses(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Where each member is, of an answer to 223. Raises `BodyError`."""
    return {
        client_id: _queues(table) for client_id, table in decode_fastjson_body(_Statuses, body).consumer_table.items()
    }


def _table(offsets: Mapping[MessageQueue, int]) -> dict[msgspec.Struct, FastJsonValue]:
    return {queue: offset for queue, offset in offsets.items()}  # noqa: C416 - keys widen


def _queues(table: Mapping[str, int]) -> dict[MessageQueue, int]:
    return {decode_body(MessageQueue, key.encode()): offset for key, offset in table.items()}
