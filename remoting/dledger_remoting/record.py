"""The message record: the unit of a commit log, which pulls, views and queries carry. Integers are big-endian.

| size | field | offset (IPv4 hosts) |
|---|---|---|
| 4 | size of the whole record | 0 |
| 4 | magic: v1 `DAA320A7`; v2 `DAA320AB`, where the topic length has 2 bytes | 4 |
| 4 | body crc = crc32(body) & 0x7fffffff, 0 for an empty body | 8 |
| 4 | queue id | 12 |
| 4 | flag (the user's) | 16 |
| 8 | queue offset | 20 |
| 8 | physical offset | 28 |
| 4 | sys flag | 36 |
| 8 | born timestamp, ms | 40 |
| 8 / 20 | born host, 20 if sys flag has 0x10 | 48 |
| 8 | store timestamp, ms | 56 |
| 8 / 20 | store host, 20 if sys flag has 0x20 | 64 |
| 4 | reconsume times | 72 |
| 8 | prepared transaction offset | 76 |
| 4 + n | body | 84 |
| 1 / 2 + n | topic, UTF-8 | |
| 2 + n | properties | |

v2 is used for topics longer than 127 bytes only, because some clients know v1 alone. Format: RocketMQ's commit log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from .checksum import crc32
from .errors import RecordError
from .hosts import HostAddress, pack_host, unpack_host

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAX_V1_TOPIC_BYTES: Final = 127
MAX_PROPERTIES_BYTES: Final = 32767
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Default limit of a message's body, in bytes."""

SYS_COMPRESSED: Final = 0x1
SYS_MULTI_TAGS: Final = 0x2
SYS_TRANSACTION_PREPARED: Final = 0x4
SYS_TRANSACTION_COMMIT: Final = 0x8
SYS_TRANSACTION_ROLLBACK: Final = 0xC
SYS_TRANSACTION_MASK: Final = 0xC
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_INNER_BATCH_MASK: Final = 0xC0
"""Bits of a record that holds several messages, in RocketMQ's BatchCQ topics."""
KEPT_SYS_FLAGS: Final = SYS_COMPRESSED | SYS_MULTI_TAGS | 0x700
"""Bits of a sender's sys flag that a broker keeps: the compression of the body, and whether there are several tags."""
SYS_HOST_MASK: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6

RECORD_HEAD: Final = Struct(">iIIiiqqiq8sq8siqi")
"""The first 88 bytes of a record with IPv4 hosts, up to and including the body length; fields in the table's order."""

RECORD_HEAD_SHARED: Final = Struct(">iq8sq8siq")
"""The 48 bytes of `RECORD_HEAD` that are the same for all messages of a request: sys flag to prepared transaction."""
RECORD_HEAD_AROUND: Final = Struct(">iIIiiqq48si")
"""`RECORD_HEAD` with the fields that messages share (`RECORD_HEAD_SHARED`) as one field."""

RECORD_HEAD_BYTES: Final = 88
STORE_TIMESTAMP_PLACE: Final = 56
"""Position of the store timestamp in a record with IPv4 hosts, in bytes."""
_FIXED_BYTES: Final = RECORD_HEAD_BYTES + 1 + 2
_V6_EXTRA_BYTES: Final = 12
_MIN_RECORD_BYTES: Final = _FIXED_BYTES

_LEAD: Final = Struct(">iIIiiqqiq")
_TAIL: Final = Struct(">iqi")
_INT64: Final = Struct(">q")
_INT16: Final = Struct(">H")

_SCAN: Final = Struct(">iI4xi4xqqi16xq20xi")
"""Fields of a head with IPv4 hosts that a scan reads.

They are size, magic, queue id, queue offset, physical offset, sys flag, store timestamp and body length.
"""


class MessageRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One stored message. `properties` is the raw property text (module `properties`); timestamps are ms since 1970."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int
    born_host: HostAddress
    store_timestamp: int
    store_host: HostAddress
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class RecordRef(msgspec.Struct, frozen=True, gc=False):
    """Fields of a record that an index needs. `position` is relative to the scanned buffer."""

    position: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int
    sys_flag: int
    properties: bytes


def record_size(body_bytes: int, topic_bytes: int, properties_bytes: int, v6_hosts: int = 0) -> int:
    """Return the size of a record in bytes; `v6_hosts` is the number of its two hosts that are IPv6."""
    long_topic = 1 if topic_bytes > MAX_V1_TOPIC_BYTES else 0
    return _FIXED_BYTES + body_bytes + topic_bytes + properties_bytes + long_topic + _V6_EXTRA_BYTES * v6_hosts


def body_crc(body: Buffer) -> int:
    """Return the checksum of a body as a record holds it."""
    return crc32(body) & 0x7FFFFFFF


def encode_record(record: MessageRecord) -> bytes:
    """Encode a record. Sets the host bits of the sys flag by the hosts, and picks v1 or v2 by the topic's length.

    Raises `RecordError` if a field does not fit the format, ValueError if a host is not a numeric address.
    """
    topic = record.topic.encode()
    born_host, store_host = pack_host(record.born_host), pack_host(record.store_host)
    v6_born, v6_store = len(born_host) > 8, len(store_host) > 8
    sys_flag = record.sys_flag & ~SYS_HOST_MASK
    sys_flag |= (SYS_BORN_HOST_V6 if v6_born else 0) | (SYS_STORE_HOST_V6 if v6_store else 0)
    size = record_size(len(record.body), len(topic), len(record.properties), v6_born + v6_store)
    long_topic = len(topic) > MAX_V1_TOPIC_BYTES
    try:
        return b"".join(
            (
                _LEAD.pack(
                    size,
                    MAGIC_V2 if long_topic else MAGIC_V1,
                    body_crc(record.body),
                    record.queue_id,
                    record.flag,
                    record.queue_offset,
                    record.physical_offset,
                    sys_flag,
                    record.born_timestamp,
                ),
                born_host,
                _INT64.pack(record.store_timestamp),
                store_host,
                _TAIL.pack(record.reconsume_times, record.prepared_transaction_offset, len(record.body)),
                record.body,
                topic_field(topic),
                _INT16.pack(len(record.properties)),
                record.properties,
            )
        )
    except struct.error as error:
        raise RecordError(f"record of topic {record.topic!r} does not fit the format: {error}") from error


def topic_field(topic: bytes) -> bytes:
    """Return a record's topic with its length before it. A sender of many records to one topic prepares it once."""
    if len(topic) > MAX_V1_TOPIC_BYTES:
        return _INT16.pack(len(topic)) + topic
    return bytes((len(topic),)) + topic


def decode_record(buffer: Buffer, offset: int = 0, *, verify_crc: bool = False) -> MessageRecord:
    """Decode the record at `offset`.

    Raises `RecordError` if no record is there, or if `verify_crc` finds its body damaged.
    """
    try:
        return _decode_record(buffer, offset, verify_crc)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise RecordError(f"no record at byte {offset}: {error}") from error


def physical_offset_of(record: bytes | memoryview) -> int:
    """Return the position of a record in the log, from its first 36 bytes."""
    offset: int = _INT64.unpack_from(record, 28)[0]
    return offset


def iter_records(buffer: Buffer, *, verify_crc: bool = False) -> Iterator[MessageRecord]:
    """Yield all records of a buffer that holds records only. Raises `RecordError` at the first that cannot be read."""
    position = 0
    while position < len(buffer):
        yield decode_record(buffer, position, verify_crc=verify_crc)
        position += int.from_bytes(buffer[position : position + 4], "big")


def scan_records(buffer: bytes, start: int = 0, end: int | None = None) -> Iterator[RecordRef]:
    """Yield the fields that an index needs of each record in `buffer[start:end]`, at about 1 µs a record.

    The range must hold records only. Bodies are neither read nor checked. Raises `RecordError` at the first
    record that cannot be read.
    """
    stop = len(buffer) if end is None else end
    unpack = _SCAN.unpack_from
    position = start
    while position < stop:
        if stop - position < _MIN_RECORD_BYTES:
            raise RecordError(f"no record at byte {position}: only {stop - position} bytes are left")
        size, magic, queue_id, queue_offset, physical_offset, sys_flag, stored, body_bytes = unpack(buffer, position)
        record_end = position + size
        if magic != MAGIC_V1 or sys_flag & SYS_HOST_MASK:
            yield _scan_uncommon(buffer, position, stop)
            position = record_end
            continue
        topic_start = position + RECORD_HEAD_BYTES + 1 + body_bytes
        if record_end > stop or body_bytes < 0 or topic_start + 2 > record_end:
            raise RecordError(f"no record at byte {position}: size {size} with a body of {body_bytes} bytes")
        topic_end = topic_start + buffer[topic_start - 1]
        properties_start = topic_end + 2
        if properties_start > record_end or properties_start + (buffer[topic_end] << 8 | buffer[topic_end + 1]) != (
            record_end
        ):
            raise RecordError(f"no record at byte {position}: its size {size} contradicts its fields")
        yield RecordRef(
            position,
            size,
            buffer[topic_start:topic_end],
            queue_id,
            queue_offset,
            physical_offset,
            stored,
            sys_flag,
            buffer[properties_start:record_end],
        )
        position = record_end


def iter_properties(buffer: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (start, size, property text) of each record in a buffer of records back to back.

    Raises `RecordError` at the first record that cannot be read.
    """
    stop = len(buffer)
    start = 0
    while start < stop:
        if stop - start < _MIN_RECORD_BYTES:
            raise RecordError(f"no record at byte {start}: only {stop - start} bytes are left")
        size, magic, _, _, _, sys_flag, _, body_bytes = _SCAN.unpack_from(buffer, start)
        end = start + size
        if magic != MAGIC_V1 or sys_flag & SYS_HOST_MASK:
            yield start, size, _scan_uncommon(buffer, start, stop).properties
        else:
            topic_start = start + RECORD_HEAD_BYTES + 1 + body_bytes
            if end > stop or body_bytes < 0 or topic_start + 2 > end:
                raise RecordError(f"no record at byte {start}: size {size} with a body of {body_bytes} bytes")
            properties_start = topic_start + buffer[topic_start - 1] + 2
            if properties_start > end:
                raise RecordError(f"no record at byte {start}: its size {size} contradicts its fields")
            yield start, size, buffer[properties_start:end]
        start = end


def _scan_uncommon(buffer: bytes, position: int, stop: int) -> RecordRef:
    """Scan a record of version 2 or with an IPv6 host, by the general decoder."""
    size = int.from_bytes(buffer[position : position + 4], "big", signed=True)
    if size > stop - position:
        raise RecordError(
            f"no record at byte {position}: size {size} exceeds the {stop - position} bytes that are left"
        )
    record = decode_record(buffer, position)
    return RecordRef(
        position,
        size,
        record.topic.encode(),
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.store_timestamp,
        record.sys_flag,
        record.properties,
    )


def _decode_record(buffer: Buffer, offset: int, verify_crc: bool) -> MessageRecord:
    lead = _LEAD.unpack_from(buffer, offset)
    size, magic, crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp = lead
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"no record at byte {offset}: magic {magic:08x}")
    if size < _MIN_RECORD_BYTES or size > len(buffer) - offset:
        raise RecordError(f"no record at byte {offset}: size {size}, {len(buffer) - offset} bytes are left")
    position = offset + _LEAD.size
    born_host, position = _read_host(buffer, position, bool(sys_flag & SYS_BORN_HOST_V6))
    (store_timestamp,) = _INT64.unpack_from(buffer, position)
    store_host, position = _read_host(buffer, position + 8, bool(sys_flag & SYS_STORE_HOST_V6))
    reconsume_times, prepared_transaction_offset, body_bytes = _TAIL.unpack_from(buffer, position)
    body_start = position + _TAIL.size
    if body_bytes < 0 or body_bytes > size:
        raise RecordError(f"no record at byte {offset}: body length {body_bytes} in a record of {size} bytes")
    topic_start = body_start + body_bytes + (2 if magic == MAGIC_V2 else 1)
    topic_length = int.from_bytes(buffer[body_start + body_bytes : topic_start], "big")
    topic_end = topic_start + topic_length
    (properties_length,) = _INT16.unpack_from(buffer, topic_end)
    properties_start = topic_end + 2
    if properties_start + properties_length != offset + size:
        raise RecordError(f"no record at byte {offset}: its size {size} contradicts its fields")
    body = bytes(buffer[body_start : body_start + body_bytes])
    if verify_crc and body and crc != body_crc(body):
        raise RecordError(f"record at byte {offset}: body crc {body_crc(body):08x}, {crc:08x} expected")
    return MessageRecord(
        topic=str(buffer[topic_start:topic_end], "utf-8"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=body,
        properties=bytes(buffer[properties_start : properties_start + properties_length]),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born_timestamp,
        born_host=born_host,
        store_timestamp=store_timestamp,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    )


def _read_host(buffer: Buffer, position: int, v6: bool) -> tuple[HostAddress, int]:
    end = position + (20 if v6 else 8)
    return unpack_host(bytes(buffer[position:end])), end
