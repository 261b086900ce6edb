"""The body of a broker's registration (103): its topics and their data version, as JSON or as one zlib stream.

The zlib stream holds, in this order, integers big-endian: int32 length + data version JSON; int32 number of topics; for
each int32 length + `name readQueueNums writeQueueNums perm filterType {attributes JSON}`, the attributes absent in old
versions; int32 length + filter server list JSON; int32 0, which 5.x appends and is not read. The stream loses
`topicSysFlag` and `order`. Format: RocketMQ's `RegisterBrokerBody`.
"""

from __future__ import annotations

import struct
import zlib
from struct import Struct
from typing import Final

import msgspec

from .bodies import decode_body, decode_fastjson_body, encode_body
from .checksum import crc32
from .compression import inflate
from .errors import BodyError
from .integers import MAX_INT32, MIN_INT32, Int64
from .topics import TopicConfig

_LENGTH: Final = Struct(">i")
MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The age of a broker group's tables: `state_version` is the Raft term, `counter` grows with every change."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0


class TopicConfigSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """A broker's topics; also the answer to 21."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()


class RegisterBrokerBody(msgspec.Struct, frozen=True, rename="camel"):
    """What a broker registers."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = TopicConfigSerializeWrapper()
    filter_server_list: list[str] = []


class TopicChangesBody(msgspec.Struct, frozen=True, rename="camel"):
    """What has changed of a node's topics since it registered them as of `base` (20005): those that are new or other
    now, and the names of those that are gone. Together they are as of `data_version`.
    """

    base: DataVersion
    data_version: DataVersion
    topic_config_table: dict[str, TopicConfig] = {}
    deleted: list[str] = []


def encode_registration(body: RegisterBrokerBody) -> bytes:
    """The plain JSON form, which keeps everything."""
    return encode_body(body)


def encode_compressed_registration(body: RegisterBrokerBody) -> bytes:
    """The zlib stream, for topics that are too many for a frame otherwise."""
    wrapper = body.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table.values()
    parts = [_with_length(encode_body(wrapper.data_version)), _LENGTH.pack(len(topics))]
    for topic in topics:
        line = f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
        line += f"{topic.topic_filter_type} {msgspec.json.encode(topic.attributes).decode()}"
        parts.append(_with_length(line.encode()))
    parts += (_with_length(msgspec.json.encode(body.filter_server_list)), _LENGTH.pack(0))
    return zlib.compress(b"".join(parts))


def registration_crc(body: bytes) -> int:
    """The value of header field `bodyCrc32` for these bytes."""
    return crc32(body) & 0x7FFFFFFF


def decode_registration(body: bytes, *, compressed: bool = False) -> RegisterBrokerBody:
    """Either form; no bytes mean no topics. Raises `BodyError`."""
    if not body:
        return RegisterBrokerBody()
    if not compressed:
        return decode_fastjson_body(RegisterBrokerBody, body)
    data = inflate(body, MAX_INFLATED_BYTES)
    try:
        return _decode_stream(data)
    except struct.error as error:
        raise BodyError(f"compressed registration is cut off: {error}") from error


def _decode_stream(data: bytes) -> RegisterBrokerBody:
    version, position = _take(data, 0)
    (count,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    topics: dict[str, TopicConfig] = {}
    for _ in range(count):
        line, position = _take(data, position)
        topic = _decode_topic_line(line)
        topics[topic.topic_name] = topic
    filters, _ = _take(data, position)
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(topics, decode_body(DataVersion, version)),
        decode_body(list[str], filters) if filters else [],
    )


def _decode_topic_line(line: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type, *attributes = line.decode().split(" ", 5)
        return TopicConfig(
            name,
            _int32(read),
            _int32(write),
            _int32(perm),
            filter_type,
            attributes=decode_body(dict[str, str], attributes[0].encode()) if attributes else {},
        )
    except ValueError as error:
        raise BodyError(f"topic line {line!r}, expected 'name read write perm filterType {{attributes}}'") from error


def _int32(text: str) -> int:
    number = int(text)
    if not MIN_INT32 <= number <= MAX_INT32:
        raise ValueError(f"{number} is no number of 32 bits")
    return number


def _with_length(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    if length < 0 or length > len(data) - start:
        raise BodyError(f"compressed registration is damaged: length {length} at byte {position}")
    return data[start : start + length], start + length
