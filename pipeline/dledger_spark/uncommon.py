"""Records that are not like most, put into the layout that most have.

A record with an IPv6 host, a topic longer than 127 bytes or a compressed body becomes one with zero hosts, a topic
behind one byte of length (no topic is longer than 255), and the body as its producer gave it. The format is that of
`dledger_remoting.record`; the standard library only, and the codecs of compressed bodies when one comes.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from struct import Struct
from typing import Final, NamedTuple

from .entries import Span
from .errors import CorruptDataError

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
HEAD_BYTES: Final = 88
"""The fields before the body of a record with IPv4 hosts."""
MIN_RECORD_BYTES: Final = HEAD_BYTES + 3
BUFFER_BYTES: Final = 8 << 20
"""About so many bytes are rewritten into one buffer: compressed bodies may grow a thousandfold."""

_COMPRESSED: Final = 0x1
_COMPRESSION: Final = 0x701
_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
UNCOMMON_FLAGS: Final = _COMPRESSED | _BORN_HOST_V6 | _STORE_HOST_V6

_SIZE_AND_MAGIC: Final = Struct(">iI")
_SYS_FLAG: Final = Struct(">i")
_SYS_FLAG_PLACE: Final = 36
_LEAD: Final = Struct(">iIIiiqqiq")
_TAIL: Final = Struct(">iqi")
_INT64: Final = Struct(">q")

Hosts = dict[int, tuple[str, str]]


@dataclass(slots=True)
class Notes:
    """What the common layout has no place for, by physical offset: born and store host of records where one is IPv6,
    and why a body cannot be read, which matters only if its row is wanted.
    """

    hosts: Hosts = field(default_factory=dict)
    unreadable: dict[int, CorruptDataError] = field(default_factory=dict)


def common_layout(
    data: bytes, spans: Sequence[Span], topics: Container[bytes]
) -> Iterator[tuple[bytes, list[Span], Notes]]:
    """Buffers with the records of `topics`, all in the common layout, their spans, and what has no place in it.

    Raises `CorruptDataError` at the first record that cannot be read.
    """
    pieces: list[bytes] = []
    parts: list[Span] = []
    notes = Notes()
    size = 0
    for start, stop, term, log_index in spans:
        begin, position = size, start
        while position < stop:
            piece, position = _record(data, position, stop, topics, notes)
            pieces.append(piece)
            size += len(piece)
            if size >= BUFFER_BYTES:
                parts.append(Span(begin, size, term, log_index))
                yield b"".join(pieces), parts, notes
                pieces, parts, notes, begin, size = [], [], Notes(), 0, 0
        parts.append(Span(begin, size, term, log_index))
    yield b"".join(pieces), parts, notes


def host_text(data: bytes) -> str:
    """Address and port of 8 or 20 bytes, an IPv6 address in brackets."""
    address, port = ip_address(data[:-4]), int.from_bytes(data[-4:], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _record(data: bytes, position: int, stop: int, topics: Container[bytes], notes: Notes) -> tuple[bytes, int]:
    """The record at `position` in the common layout (empty if its topic is not wanted), and where the next one is."""
    if stop - position < MIN_RECORD_BYTES:
        raise _damaged(position, f"only {stop - position} bytes are left")
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
    end = position + size
    if size < MIN_RECORD_BYTES or end > stop:
        raise _damaged(position, f"size {size}, {stop - position} bytes are left")
    (sys_flag,) = _SYS_FLAG.unpack_from(data, position + _SYS_FLAG_PLACE)
    if magic == MAGIC_V1 and not sys_flag & UNCOMMON_FLAGS:
        return data[position:end], end
    try:
        record = _read(data, position, stop)
        if record.topic not in topics:
            return b"", end
        return _rewritten(record, notes), end
    except (struct.error, ValueError) as error:
        raise _damaged(position, str(error)) from error


class _Fields(NamedTuple):
    lead: tuple[int, ...]
    born_host: bytes
    store_time: int
    store_host: bytes
    tail: tuple[int, ...]
    body: bytes
    topic: bytes
    properties: bytes


def _read(data: bytes, position: int, stop: int) -> _Fields:
    """One record by its general layout. Raises ValueError and `struct.error`."""
    lead = _LEAD.unpack_from(data, position)
    size, magic, sys_flag = lead[0], lead[1], lead[7]
    end = position + size
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"magic {magic:08x}")
    born_start = position + _LEAD.size
    store_time_start = born_start + (20 if sys_flag & _BORN_HOST_V6 else 8)
    store_start = store_time_start + 8
    tail_start = store_start + (20 if sys_flag & _STORE_HOST_V6 else 8)
    tail = _TAIL.unpack_from(data, tail_start)
    body_start = tail_start + _TAIL.size
    body_end = body_start + tail[2]
    topic_start = body_end + (2 if magic == MAGIC_V2 else 1)
    if tail[2] < 0 or topic_start > min(end, stop):
        raise ValueError(f"size {size} with a body of {tail[2]} bytes")
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
    if topic_end + 2 > end or topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big") != end:
        raise ValueError(f"its size {size} contradicts its fields")
    (store_time,) = _INT64.unpack_from(data, store_time_start)
    return _Fields(
        lead=lead,
        born_host=data[born_start:store_time_start],
        store_time=store_time,
        store_host=data[store_start:tail_start],
        tail=tail,
        body=data[body_start:body_end],
        topic=data[topic_start:topic_end],
        properties=data[topic_end + 2 : end],
    )


def _rewritten(record: _Fields, notes: Notes) -> bytes:
    _, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_time = record.lead
    reconsume_times, prepared_offset, _ = record.tail
    message = f"{record.topic.decode(errors='replace')}, queue {queue_id}, offset {queue_offset}"
    try:
        body = decompressed(record.body, sys_flag, message)
    except CorruptDataError as error:
        body = b""
        notes.unreadable[physical_offset] = error
    born, store = record.born_host, record.store_host
    if len(born) + len(store) > 16:
        notes.hosts[physical_offset] = (host_text(born), host_text(store))
        born, store = (part if len(part) == 8 else bytes(8) for part in (born, store))
    size = HEAD_BYTES + len(body) + 1 + len(record.topic) + 2 + len(record.properties)
    common_flag = sys_flag & ~(_COMPRESSION | _BORN_HOST_V6 | _STORE_HOST_V6)
    return b"".join(
        (
            _LEAD.pack(size, MAGIC_V1, body_crc, queue_id, flag, queue_offset, physical_offset, common_flag, born_time),
            born,
            _INT64.pack(record.store_time),
            store,
            _TAIL.pack(reconsume_times, prepared_offset, len(body)),
            body,
            bytes((len(record.topic),)),
            record.topic,
            len(record.properties).to_bytes(2, "big"),
            record.properties,
        )
    )


def decompressed(body: bytes, sys_flag: int, message: str) -> bytes:
    """The body as its producer gave it. Raises `CorruptDataError` that names the `message` if that cannot be read."""
    if not sys_flag & _COMPRESSED:
        return body
    from dledger_remoting.compression import decompress
    from dledger_remoting.errors import BodyError

    try:
        return decompress(body, sys_flag)
    except BodyError as error:
        raise CorruptDataError(f"the body of a message ({message}) cannot be read: {error.remark}") from error


def _damaged(position: int, why: str) -> CorruptDataError:
    return CorruptDataError(f"no record at byte {position} of the answer: {why}")
