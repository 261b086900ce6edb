"""Conversion of uncommon records into the layout that most records have.

An uncommon record has an IPv6 host, a topic longer than 127 bytes or a compressed body. After the conversion, IPv6
hosts are zero, one byte has the topic's length, and the body is as its producer gave it. No topic is longer than 255
bytes. The format is that of `dledger_remoting.record`. The module imports the codecs of compressed bodies on demand.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from struct import Struct
from typing import Final, NamedTuple

from dledger_remoting.checksum import crc32

from .entries import Span
from .errors import CorruptDataError

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
HEAD_BYTES: Final = 88
"""Size in bytes of the fields before the body, in a record with IPv4 hosts."""
MIN_RECORD_BYTES: Final = HEAD_BYTES + 3
BUFFER_BYTES: Final = 8 << 20
"""Size in bytes at which a rewritten buffer is yielded: compressed bodies may grow a thousandfold."""

_COMPRESSED: Final = 0x1
_COMPRESSION: Final = 0x701
_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
_BODY_CRC_MASK: Final = 0x7FFFFFFF
HOST_FLAGS: Final = _BORN_HOST_V6 | _STORE_HOST_V6

_SIZE_AND_MAGIC: Final = Struct(">iI")
_SYS_FLAG: Final = Struct(">i")
_SYS_FLAG_PLACE: Final = 36
_LEAD: Final = Struct(">iIIiiqqiq")
_TAIL: Final = Struct(">iqi")
_INT64: Final = Struct(">q")

Hosts = dict[int, tuple[str, str]]


def uncommon_flags(*, reads_bodies: bool) -> int:
    """Return the sys flags of records that have to be rewritten. A compressed body need not be if it is not read."""
    return HOST_FLAGS | (_COMPRESSED if reads_bodies else 0)


class Undecoded(NamedTuple):
    """A body that cannot be decoded: its message, the stored bytes, and the reason.

    `is_bad` is true if the producer sent it like that: its CRC holds, and no codec is missing here.
    """

    topic: str
    queue_id: int
    queue_offset: int
    raw: bytes
    why: str
    is_bad: bool


@dataclass(slots=True)
class Notes:
    """Facts without a place in the common layout, by physical offset.

    They are the born and store hosts of records with an IPv6 host, and bodies that cannot be decoded. The latter matter
    only if their rows are wanted.
    """

    hosts: Hosts = field(default_factory=dict)
    undecoded: dict[int, Undecoded] = field(default_factory=dict)


def common_layout(
    data: bytes, spans: Sequence[Span], topics: Container[bytes], *, reads_bodies: bool
) -> Iterator[tuple[bytes, list[Span], Notes]]:
    """Yield buffers with the records in the common layout, their spans, and the facts that have no place in it.

    Uncommon records are left out unless their topic is in `topics`. Bodies are decompressed if `reads_bodies`. Raises
    `CorruptDataError` at the first record that cannot be read.
    """
    pieces: list[bytes] = []
    parts: list[Span] = []
    notes = Notes()
    size = 0
    uncommon = uncommon_flags(reads_bodies=reads_bodies)
    for start, stop, term, log_index in spans:
        begin, position = size, start
        while position < stop:
            piece, position = _convert_record(data, position, stop, topics, notes, uncommon)
            pieces.append(piece)
            size += len(piece)
            if size >= BUFFER_BYTES:
                parts.append(Span(begin, size, term, log_index))
                yield b"".join(pieces), parts, notes
                pieces, parts, notes, begin, size = [], [], Notes(), 0, 0
        parts.append(Span(begin, size, term, log_index))
    yield b"".join(pieces), parts, notes


def host_text(data: bytes) -> str:
    """Return address and port as text, from 8 or 20 bytes. An IPv6 address is in brackets."""
    address, port = ip_address(data[:-4]), int.from_bytes(data[-4:], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _convert_record(
    data: bytes, position: int, stop: int, topics: Container[bytes], notes: Notes, uncommon: int
) -> tuple[bytes, int]:
    """Return the record at `position` in the common layout, and the position of the next record.

    An uncommon record is empty if its topic is not in `topics`.
    """
    if stop - position < MIN_RECORD_BYTES:
        raise _damaged(position, f"only {stop - position} bytes are left")
    size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
    end = position + size
    if size < MIN_RECORD_BYTES or end > stop:
        raise _damaged(position, f"size {size}, {stop - position} bytes are left")
    (sys_flag,) = _SYS_FLAG.unpack_from(data, position + _SYS_FLAG_PLACE)
    if magic == MAGIC_V1 and not sys_flag & uncommon:
        return data[position:end], end
    try:
        record = _parse_record(data, position, stop)
        if record.topic not in topics:
            return b"", end
        return _rewrite(record, notes, uncommon), end
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


def _parse_record(data: bytes, position: int, stop: int) -> _Fields:
    """Return the fields of a record in any layout. Raises ValueError or `struct.error` for a damaged record."""
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


def _rewrite(record: _Fields, notes: Notes, uncommon: int) -> bytes:
    _, _, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_time = record.lead
    reconsume_times, prepared_offset, _ = record.tail
    body = record.body
    if sys_flag & uncommon & _COMPRESSED:
        body = _decode_body(record, notes)
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


def _decode_body(record: _Fields, notes: Notes) -> bytes:
    """Return the body as its producer gave it. If it cannot be decoded, return an empty body and add a note."""
    from dledger_remoting.compression import decompress
    from dledger_remoting.errors import BodyError, MissingCodecError

    _, _, body_crc, queue_id, _, queue_offset, physical_offset, sys_flag, _ = record.lead
    try:
        return decompress(record.body, sys_flag)
    except BodyError as error:
        # Corrupt bytes must not count as a bad message: a reader may drop bad messages, or take null for them.
        is_sound = has_crc(record.body, body_crc)
        notes.undecoded[physical_offset] = Undecoded(
            record.topic.decode(errors="replace"),
            queue_id,
            queue_offset,
            record.body,
            error.remark if is_sound else "it does not have its crc",
            is_bad=is_sound and not isinstance(error, MissingCodecError),
        )
        return b""


def has_crc(body: bytes | memoryview, body_crc: int) -> bool:
    """Return True if a stored body has the CRC of its record. An empty body has 0."""
    return crc32(body) & _BODY_CRC_MASK == body_crc


def _damaged(position: int, why: str) -> CorruptDataError:
    return CorruptDataError(f"no record at byte {position} of the answer: {why}")
