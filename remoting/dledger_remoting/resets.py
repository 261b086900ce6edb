"""Resets of consumer groups: headers and bodies of 220, 221, 222, 223 and 314.

Java's clients and tools read and write tables of queues with objects as keys, in fastjson's dialect. C++ clients read a
list instead.
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

_encode: Final = msgspec.json.Encoder().encode

AT_END: Final = -1
"""Timestamp that stands for the end of a queue."""


class ResetOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Moves a group (222) or a consumer (220) to another offset: in one queue, or in all if `queue_id` is -1.

    The new offset is `offset`, if that is given and not -1. Otherwise it is the first message stored at or after
    `timestamp` (ms since 1970; -1: the end). Without `is_force` a group only moves back.
    """

    topic: str
    group: str
    timestamp: Int64
    is_force: bool
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatusHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Asks for a consumer's offsets in a topic (221), or for the offsets of a group's members (223).

    `client_addr` may name one member.
    """

    topic: str
    group: str
    client_addr: str | None = None


class CloneOffsetHeader(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Gives one group the offsets of another group (314), in one topic or in all topics where that group has offsets.

    Unless `offline`, topics are left out to which no member of a live source group subscribes.
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
    """Encode the body of 220 for a client in a language, or the answer to 222."""
    if language == LanguageCode.CPP:
        rows = [
            _QueueOffset(queue.broker_name, offset, queue.queue_id, queue.topic) for queue, offset in offsets.items()
        ]
        return msgspec.json.encode(_ResetList(rows))
    return b'{"offsetTable":%b}' % _table_text(offsets)


def decode_reset(body: bytes) -> dict[MessageQueue, int]:
    """Decode a body that `encode_reset` wrote for Java. Raises `BodyError`."""
    return _queues(decode_fastjson_body(_ResetTable, body).offset_table)


def encode_status(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Encode the answer to 221."""
    return b'{"messageQueueTable":%b}' % _table_text(offsets)


def decode_status(body: bytes) -> dict[MessageQueue, int]:
    """Decode a client's answer to 221. Raises `BodyError`."""
    return _queues(decode_fastjson_body(_Status, body).message_queue_table)


def encode_statuses(clients: Mapping[str, Mapping[MessageQueue, int]]) -> bytes:
    """Encode the answer to 223."""
    table: dict[str, FastJsonValue] = {client_id: _table(offsets) for client_id, offsets in clients.items()}
    return encode_fastjson({"consumerTable": table, "messageQueueTable": {}})


def decode_statuses(body: bytes) -> dict[str, dict[MessageQueue, int]]:
    """Decode an answer to 223: the offsets of each member. Raises `BodyError`."""
    return {
        client_id: _queues(table) for client_id, table in decode_fastjson_body(_Statuses, body).consumer_table.items()
    }


def _table_text(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the text of a table as `encode_fastjson` writes it, which takes 0.1 s for 10,000 queues."""
    rows = sorted((_encode(queue), offset) for queue, offset in offsets.items())
    return b"{%b}" % b",".join([b"%b:%d" % row for row in rows])


def _table(offsets: Mapping[MessageQueue, int]) -> dict[msgspec.Struct, FastJsonValue]:
    return {queue: offset for queue, offset in offsets.items()}  # noqa: C416 - keys widen


def _queues(table: Mapping[str, int]) -> dict[MessageQueue, int]:
    return {decode_body(MessageQueue, key.encode()): offset for key, offset in table.items()}
