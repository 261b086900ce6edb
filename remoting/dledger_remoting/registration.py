"""Body of a broker's registration (103): its topics and their data version, as JSON or as one zlib stream.

The zlib stream holds these parts in this order, integers big-endian:

- int32 length + data version JSON.
- int32 number of topics.
- For each topic int32 length + `name readQueueNums writeQueueNums perm filterType {attributes JSON}`. Old versions
  leave the attributes out.
- int32 length + filter server list JSON.
- int32 0, which 5.x appends. It is not read.

Format: RocketMQ's `RegisterBrokerBody`. Its stream loses `topicSysFlag` and `order`. Ours has them as attributes
(`_SYS_FLAG`, `_ORDER`) unless they are 0 and false.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator, Iterator
from struct import Struct
from typing import Final, TypeAlias, TypeVar

import msgspec

from .bodies import decode_body, decode_fastjson_body, encode_body
from .checksum import crc32
from .errors import BodyError
from .integers import MAX_INT32, MIN_INT32, Int64
from .topics import TopicConfig

ResultT = TypeVar("ResultT")
Steps: TypeAlias = Generator[None, None, ResultT]
"""Work that pauses after each slice, so that other tasks of the event loop have their turn."""

_LENGTH: Final = Struct(">i")
_SYS_FLAG: Final = "topic.sys.flag"
_ORDER: Final = "topic.order"
MAX_INFLATED_BYTES: Final = 32 << 20
MAX_REGISTERED_TOPICS: Final = 65_536
"""Maximum number of topics in one registration, which names all topics of a broker group."""
PIECE_BYTES: Final = 256 << 10
"""Size of the pieces that are decoded at once, in bytes."""
MAX_DIALECT_BYTES: Final = 64 << 10
"""Maximum size in bytes of a body in fastjson's dialect, which takes long to read."""
MAX_CUTS: Final = 8
"""Maximum number of places that are tried as the end of a topic's text."""
SLICE_TOPICS: Final = 4_096
"""Number of topics that are decoded, or registered, at once."""


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The age of a broker group's tables: `state_version` is the Raft term, `counter` grows with every change."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0


class TopicConfigSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """The topics of a broker; also the answer to 21."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()


class RegisterBrokerBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of a registration."""

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = TopicConfigSerializeWrapper()
    filter_server_list: list[str] = []


class _WrapperIn(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")
    data_version: DataVersion = DataVersion()


class _RegistrationIn(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_serialize_wrapper: _WrapperIn = _WrapperIn()
    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")


class TopicChangesBody(msgspec.Struct, frozen=True, rename="camel"):
    """Changes of a node's topics since it registered them as of `base` (20005): new and changed topics, names of
    deleted topics.

    With these changes the topics are as of `data_version`.
    """

    base: DataVersion
    data_version: DataVersion
    topic_config_table: dict[str, TopicConfig] = {}
    deleted: list[str] = []


def encode_registration(body: RegisterBrokerBody) -> bytes:
    """Encode as plain JSON, which keeps every field."""
    return encode_body(body)


def encode_compressed_registration(body: RegisterBrokerBody) -> bytes:
    """Encode as a zlib stream, for topics that would not fit a frame otherwise."""
    wrapper = body.topic_config_serialize_wrapper
    topics = wrapper.topic_config_table.values()
    parts = [_with_length(encode_body(wrapper.data_version)), _LENGTH.pack(len(topics))]
    for topic in topics:
        line = f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm} "
        line += f"{topic.topic_filter_type} {msgspec.json.encode(_collect_attributes(topic)).decode()}"
        parts.append(_with_length(line.encode()))
    parts += (_with_length(msgspec.json.encode(body.filter_server_list)), _LENGTH.pack(0))
    return zlib.compress(b"".join(parts))


def _collect_attributes(topic: TopicConfig) -> dict[str, str]:
    """Return a topic's attributes, and the fields that a line of the stream cannot hold."""
    extra = {_SYS_FLAG: str(topic.topic_sys_flag)} if topic.topic_sys_flag else {}
    if topic.order:
        extra[_ORDER] = "true"
    return topic.attributes | extra if extra else topic.attributes


def registration_crc(body: bytes) -> int:
    """Return the value of header field `bodyCrc32` for these bytes."""
    return crc32(body) & 0x7FFFFFFF


def decode_registration(body: bytes, *, compressed: bool = False) -> RegisterBrokerBody:
    """Decode either form; an empty body means no topics. Raises `BodyError`."""
    return run_steps(registration_steps(body, compressed=compressed))


def registration_steps(body: bytes, *, compressed: bool = False) -> Steps[RegisterBrokerBody]:
    """Decode as `decode_registration` does, with a pause after each slice of some milliseconds.

    Counts and sizes are checked first, or while the stream is inflated.
    """
    if not body:
        return RegisterBrokerBody()
    if not compressed:
        return (yield from _json_steps(body))
    data = yield from _inflate_steps(body)
    try:
        return (yield from _stream_steps(data))
    except struct.error as error:
        raise BodyError(f"compressed registration is cut off: {error}") from error


def run_steps(steps: Steps[ResultT]) -> ResultT:
    """Run all steps without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: ResultT = end.value
            return result


def _json_steps(body: bytes) -> Steps[RegisterBrokerBody]:
    objects = body.count(b"{")
    if objects > 2 * MAX_REGISTERED_TOPICS + 16:
        raise _too_many(objects // 2)
    if len(body) <= PIECE_BYTES:
        decode = decode_body if len(body) > MAX_DIALECT_BYTES else decode_fastjson_body
        return decode(RegisterBrokerBody, body, "RegisterBrokerBody")
    yield
    outer = decode_body(_RegistrationIn, body, "RegisterBrokerBody")
    wrapper, filters = outer.topic_config_serialize_wrapper, bytes(outer.filter_server_list)
    if len(filters) > PIECE_BYTES:
        raise BodyError(
            f"RegisterBrokerBody body: filterServerList has {len(filters)} bytes, at most {PIECE_BYTES} expected"
        )
    yield
    topics: dict[str, TopicConfig] = {}
    for piece in _decode_pieces(bytes(wrapper.topic_config_table)):
        topics |= piece
        if len(topics) > MAX_REGISTERED_TOPICS:
            raise _too_many(len(topics))
        yield
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(topics, wrapper.data_version), decode_body(list[str], filters, "filterServerList")
    )


def _decode_pieces(table: bytes) -> Iterator[dict[str, TopicConfig]]:
    """Yield the topics of a table in compact JSON, piece by piece."""
    start, end = table.index(b"{") + 1, table.rindex(b"}")
    while start < end:
        piece, start = _decode_piece(table, start, end)
        yield piece


def _decode_piece(table: bytes, start: int, end: int) -> tuple[dict[str, TopicConfig], int]:
    """Decode topics from `start` on. Return them and the place where the next topic begins.

    A piece ends with the first `},"` after `PIECE_BYTES`. If that lies within a topic, the piece cannot be decoded, and
    the next `},"` is tried.
    """
    cut = start + PIECE_BYTES
    for _ in range(MAX_CUTS):
        cut = table.find(b'},"', cut, end) + 1
        stop = cut or end
        if stop - start > 2 * PIECE_BYTES:
            break
        try:
            return decode_body(dict[str, TopicConfig], b"{%b}" % table[start:stop], "topicConfigTable"), stop + 1
        except BodyError:
            if stop == end:
                raise
    raise BodyError(f"topicConfigTable body: no topic ends between bytes {start} and {start + 2 * PIECE_BYTES}")


def _inflate_steps(body: bytes) -> Steps[bytes]:
    """Inflate a zlib stream. Each piece is checked as soon as it is there."""
    stream, content, rest = zlib.decompressobj(), bytearray(), body
    while not stream.eof:
        before = len(content)
        try:
            content += stream.decompress(rest, 8 * PIECE_BYTES)
        except zlib.error as error:
            raise BodyError(f"zlib stream of {len(body)} bytes is damaged: {error}") from error
        rest = stream.unconsumed_tail
        if len(content) > MAX_INFLATED_BYTES:
            raise BodyError(f"zlib data holds more than the limit of {MAX_INFLATED_BYTES} bytes")
        if len(content) == before and not stream.eof:
            raise BodyError(f"zlib stream of {len(body)} bytes is cut off")
        if not before:
            _count_topics(content)
        if not stream.eof:
            yield
    return bytes(content)


def _count_topics(data: bytes | bytearray) -> tuple[int, int]:
    """Return the number of topics in a stream and the place where they begin; -1 if the number has not come yet.

    Raises `BodyError`.
    """
    try:
        _, position = _read_part(data, 0)
        (count,) = _LENGTH.unpack_from(data, position)
    except (BodyError, struct.error):
        return -1, 0
    if count > MAX_REGISTERED_TOPICS:
        raise _too_many(count)
    return count, position + _LENGTH.size


def _too_many(count: int) -> BodyError:
    return BodyError(f"the registration has {count} topics, the limit is {MAX_REGISTERED_TOPICS}")


def _stream_steps(data: bytes) -> Steps[RegisterBrokerBody]:
    _count_topics(data)
    version, position = _read_part(data, 0)
    (count,) = _LENGTH.unpack_from(data, position)
    position += _LENGTH.size
    topics: dict[str, TopicConfig] = {}
    for number in range(count):
        if number % SLICE_TOPICS == SLICE_TOPICS - 1:
            yield
        line, position = _read_part(data, position)
        topic = _decode_topic_line(line)
        topics[topic.topic_name] = topic
    filters, _ = _read_part(data, position)
    if len(filters) > PIECE_BYTES:
        raise BodyError(
            f"compressed registration: {len(filters)} bytes of filter servers, at most {PIECE_BYTES} expected"
        )
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(topics, decode_body(DataVersion, version)),
        decode_body(list[str], filters) if filters else [],
    )


def _decode_topic_line(line: bytes) -> TopicConfig:
    try:
        name, read, write, perm, filter_type, *rest = line.decode().split(" ", 5)
        attributes = decode_body(dict[str, str], rest[0].encode()) if rest else {}
        sys_flag, order = attributes.pop(_SYS_FLAG, "0"), attributes.pop(_ORDER, "") == "true"
        return TopicConfig(
            name, _int32(read), _int32(write), _int32(perm), filter_type, _int32(sys_flag), order, attributes
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


def _read_part(data: bytes | bytearray, position: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, position)
    start = position + _LENGTH.size
    if length < 0 or length > len(data) - start:
        raise BodyError(f"compressed registration is damaged: length {length} at byte {position}")
    return bytes(data[start : start + length]), start + length
