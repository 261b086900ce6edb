"""From stored records to rows: what a batch needs of every record is collected, and nothing else is touched.

The format is that of `dledger_remoting.record`, whose decoder is the reference; this one is for many records in a row.
It imports the standard library only (the codecs of compressed bodies when one comes), so that it runs on bare
executors. A record that is not like most of them (an IPv6 host, a topic longer than 127 bytes, a compressed body) takes
a general way.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from ipaddress import ip_address
from struct import Struct
from typing import Final

from .errors import CorruptDataError

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
HEAD_BYTES: Final = 88
"""The fields before the body of a record with IPv4 hosts."""

_SYS_COMPRESSED: Final = 0x1
_BORN_HOST_V6: Final = 0x10
_STORE_HOST_V6: Final = 0x20
_UNCOMMON: Final = _SYS_COMPRESSED | _BORN_HOST_V6 | _STORE_HOST_V6
_MIN_RECORD_BYTES: Final = HEAD_BYTES + 3
_MAX_V1_TOPIC_BYTES: Final = 127

_SCAN: Final = Struct(">iI4xi4xqqi44xi")
"""Size, magic, queue id, queue offset, physical offset, sys flag, body length; hosts are IPv4."""
_LEAD: Final = Struct(">iIIiiqqiq")
_TAIL: Final = Struct(">iqi")
_INT64: Final = Struct(">q")
_STORE_TIME: Final = Struct(">56xq")


@dataclass(slots=True)
class TopicRange:
    """Which records of a topic are wanted.

    Those at or behind byte `first_position` of the log, where the topic's present incarnation starts, whose queue
    offset lies in `[first, end)` of their queue; queues that are not named are not wanted.
    """

    name: str
    queues: dict[int, tuple[int, int]]
    first_position: int = 0

    @property
    def field(self) -> bytes:
        """The topic as it stands in a record, with its length before it."""
        name = self.name.encode()
        return len(name).to_bytes(2 if len(name) > _MAX_V1_TOPIC_BYTES else 1, "big") + name


@dataclass(slots=True)
class RowFilter:
    """What else a record must satisfy; None is no limit.

    Its store time in ms lies in `[from_ms, to_ms)`, its tag is one of `tags`.
    """

    from_ms: int | None = None
    to_ms: int | None = None
    tags: frozenset[str] | None = None

    @property
    def passes_all(self) -> bool:
        """True if nothing is filtered out."""
        return self.from_ms is None and self.to_ms is None and self.tags is None

    def accepts(self, store_ms: int, properties: bytes) -> bool:
        """Whether a record is wanted."""
        if self.from_ms is not None and store_ms < self.from_ms:
            return False
        if self.to_ms is not None and store_ms >= self.to_ms:
            return False
        return self.tags is None or _tag(properties) in self.tags


@dataclass(slots=True)
class Rows:
    """The rows of one batch to be: parallel lists, one item per row.

    `heads` are the first 88 bytes of the records; of one with IPv6 hosts they are zero, and `hosts` has the addresses.
    `entries` holds the runs (term, index, rows so far) of rows that came from one log entry each.
    """

    heads: list[bytes] = field(default_factory=list)
    values: list[bytes | memoryview] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    properties: list[bytes] = field(default_factory=list)
    hosts: dict[int, tuple[str, str]] = field(default_factory=dict)
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    value_bytes: int = 0

    def __len__(self) -> int:
        return len(self.heads)


class RecordScanner:
    """Collects the wanted rows of buffers that hold records back to back."""

    def __init__(self, topics: list[TopicRange], row_filter: RowFilter | None = None) -> None:
        self._topics = {topic.name.encode(): topic for topic in topics}
        self._filter = None if row_filter is None or row_filter.passes_all else row_filter
        self._last: TopicRange | None = topics[0] if topics else None
        self.rows = Rows()

    def take(self) -> Rows:
        """The rows collected so far; the scanner starts new ones."""
        rows, self.rows = self.rows, Rows()
        return rows

    def scan(self, data: bytes, start: int, stop: int) -> None:
        """Collect from `data[start:stop]`. Raises `CorruptDataError` at the first record that cannot be read.

        The rows refer to `data` until they are made into a batch.
        """
        rows = self.rows
        add_head, add_value, add_topic = rows.heads.append, rows.values.append, rows.topics.append
        add_properties = rows.properties.append
        view, unpack, begins = memoryview(data), _SCAN.unpack_from, data.startswith
        row_filter = self._filter
        topic = self._last
        topic_field = b"\xff" if topic is None else topic.field
        position = start
        value_bytes = 0
        while position < stop:
            if stop - position < _MIN_RECORD_BYTES:
                raise _damaged(position, f"only {stop - position} bytes are left")
            size, magic, queue_id, queue_offset, physical_offset, sys_flag, body_bytes = unpack(data, position)
            end = position + size
            if magic != MAGIC_V1 or sys_flag & _UNCOMMON:
                self._scan_uncommon(data, position, stop)
                position = end
                continue
            body_start = position + HEAD_BYTES
            topic_start = body_start + body_bytes
            if body_bytes < 0 or end > stop or topic_start + 3 > end:
                raise _damaged(position, f"size {size} with a body of {body_bytes} bytes")
            if begins(topic_field, topic_start):
                properties_start = topic_start + len(topic_field) + 2
            else:
                properties_start = topic_start + 3 + data[topic_start]
                if properties_start > end:
                    raise _damaged(position, f"its size {size} contradicts its fields")
                found = self._topics.get(data[topic_start + 1 : properties_start - 2])
                if found is not None:
                    topic, topic_field = found, found.field
                else:
                    if properties_start + _length(data, properties_start) != end:
                        raise _damaged(position, f"its size {size} contradicts its fields")
                    position = end
                    continue
            if properties_start + _length(data, properties_start) != end:
                raise _damaged(position, f"its size {size} contradicts its fields")
            assert topic is not None
            bounds = topic.queues.get(queue_id)
            if bounds is not None and bounds[0] <= queue_offset < bounds[1] and physical_offset >= topic.first_position:
                properties = data[properties_start:end]
                if row_filter is None or row_filter.accepts(_STORE_TIME.unpack_from(data, position)[0], properties):
                    add_head(data[position:body_start])
                    add_value(view[body_start:topic_start])
                    add_topic(topic.name)
                    add_properties(properties)
                    value_bytes += body_bytes
            position = end
        rows.value_bytes += value_bytes
        self._last = topic

    def _scan_uncommon(self, data: bytes, position: int, stop: int) -> None:
        """Collect one record whose layout is not that of most."""
        try:
            record = _read_uncommon(data, position, stop)
        except (struct.error, ValueError) as error:
            raise _damaged(position, str(error)) from error
        topic = self._topics.get(record.topic)
        if topic is None:
            return
        _, _, _, queue_id, _, queue_offset, physical_offset, *_ = _LEAD.unpack_from(record.head)
        first, end = topic.queues.get(queue_id, (0, 0))
        if not first <= queue_offset < end or physical_offset < topic.first_position:
            return
        if self._filter is not None and not self._filter.accepts(
            _STORE_TIME.unpack_from(record.head)[0], record.properties
        ):
            return
        rows = self.rows
        value = _decompressed(record.body, record.sys_flag, position)
        if record.hosts is not None:
            rows.hosts[len(rows)] = record.hosts
        rows.heads.append(record.head)
        rows.values.append(value)
        rows.topics.append(topic.name)
        rows.properties.append(record.properties)
        rows.value_bytes += len(value)


@dataclass(slots=True)
class _Uncommon:
    head: bytes
    sys_flag: int
    body: bytes
    topic: bytes
    properties: bytes
    hosts: tuple[str, str] | None


def _read_uncommon(data: bytes, position: int, stop: int) -> _Uncommon:
    """One record by its general layout, with a head as if its hosts were IPv4."""
    lead = _LEAD.unpack_from(data, position)
    size, magic, sys_flag = lead[0], lead[1], lead[7]
    end = position + size
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ValueError(f"magic {magic:08x}")
    if size < _MIN_RECORD_BYTES or end > stop:
        raise ValueError(f"size {size}, {stop - position} bytes are left")
    born_start = position + _LEAD.size
    store_time_start = born_start + (20 if sys_flag & _BORN_HOST_V6 else 8)
    store_start = store_time_start + 8
    tail_start = store_start + (20 if sys_flag & _STORE_HOST_V6 else 8)
    tail = _TAIL.unpack_from(data, tail_start)
    body_start = tail_start + _TAIL.size
    body_end = body_start + tail[2]
    topic_start = body_end + (2 if magic == MAGIC_V2 else 1)
    if tail[2] < 0 or topic_start > end:
        raise ValueError(f"size {size} with a body of {tail[2]} bytes")
    topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
    if topic_end + 2 > end or topic_end + 2 + int.from_bytes(data[topic_end : topic_end + 2], "big") != end:
        raise ValueError(f"its size {size} contradicts its fields")
    (store_time,) = _INT64.unpack_from(data, store_time_start)
    hosts = None
    born, store = data[born_start:store_time_start], data[store_start:tail_start]
    if len(born) + len(store) > 16:
        hosts = (host_text(born), host_text(store))
        born, store = (part if len(part) == 8 else bytes(8) for part in (born, store))
    head = b"".join((_LEAD.pack(*lead), born, _INT64.pack(store_time), store, _TAIL.pack(*tail)))
    topic, properties = data[topic_start:topic_end], data[topic_end + 2 : end]
    return _Uncommon(head, sys_flag, data[body_start:body_end], topic, properties, hosts)


def host_text(data: bytes) -> str:
    """Address and port of 8 or 20 bytes, an IPv6 address in brackets."""
    address, port = ip_address(data[:-4]), int.from_bytes(data[-4:], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _decompressed(body: bytes, sys_flag: int, position: int) -> bytes:
    if not sys_flag & _SYS_COMPRESSED:
        return body
    from dledger_remoting.compression import decompress
    from dledger_remoting.errors import BodyError

    try:
        return decompress(body, sys_flag)
    except BodyError as error:
        raise _damaged(position, error.remark) from error


def _tag(properties: bytes) -> str | None:
    from dledger_remoting.properties import TAGS, find_property

    value = find_property(properties, TAGS.encode())
    return None if value is None else value.decode(errors="replace")


def _length(data: bytes, properties_start: int) -> int:
    return data[properties_start - 2] << 8 | data[properties_start - 1]


def _damaged(position: int, why: str) -> CorruptDataError:
    return CorruptDataError(f"no record at byte {position} of the answer: {why}")
