"""Reads the records of a committed entry into units of their queues: a follower's work for every message.

Records of one producer look alike: the same topic, as many bytes of properties. A record whose topic field and
properties length are those of the record before it is therefore known to be sound once its size fits, and costs one
unpack, one comparison and one search for a tag. Every other record is read field by field.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, error
from typing import Final, TypeAlias

from dledger_broker.views.units import UNIT
from dledger_remoting.errors import RecordError
from dledger_remoting.properties import TAGS, find_property
from dledger_remoting.record import MAGIC_V1, RECORD_HEAD_BYTES, SYS_HOST_MASK, scan_records
from dledger_remoting.tags import tag_code

TopicRun: TypeAlias = tuple[bytes, int, int, bytes]
"""Records that follow one another in a queue: topic, queue id, queue offset of the first, their units."""

_TAGS: Final = TAGS.encode()
_TAGS_MARK: Final = _TAGS + b"\x01"
_HEAD: Final = Struct(">iI4xi4xq8xi44xi")
"""Size, magic, queue id, queue offset, sys flag and body length of a record head with IPv4 hosts."""


def tag_code_of(properties: bytes) -> int:
    """The tag code that a consume queue holds for a record with these properties; 0 without a tag."""
    if _TAGS_MARK not in properties:
        return 0
    tag = find_property(properties, _TAGS)
    return _code_of(tag) if tag else 0


@lru_cache(maxsize=4096)
def _code_of(tag: bytes) -> int:
    return tag_code(tag.decode(errors="replace"))


def scan_runs(records: bytes | memoryview, log_position: int) -> list[TopicRun]:
    """All records of a buffer that holds nothing else and whose first byte stands at `log_position`, by queue.

    The runs of one queue stand in the order of its offsets. Raises `RecordError` at the first record that cannot be
    read.
    """
    data = bytes(records)
    unpack, pack, find = _HEAD.unpack_from, UNIT.pack, data.find
    open_runs: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    closed: list[TopicRun] = []
    topic, field = b"", b"\x00\x00\x00"
    field_bytes, fixed_bytes, properties_bytes = len(field), RECORD_HEAD_BYTES + len(field), 0
    queue, next_offset, units = (b"", -1), -1, list[bytes]()
    position, stop = 0, len(data)
    try:
        while position < stop:
            size, magic, queue_id, queue_offset, sys_flag, body_bytes = unpack(data, position)
            end = position + size
            field_at = position + RECORD_HEAD_BYTES + body_bytes
            if (
                size - body_bytes != fixed_bytes
                or magic != MAGIC_V1
                or end > stop
                or body_bytes < 0
                or sys_flag & SYS_HOST_MASK
                or data[field_at : field_at + field_bytes] != field
            ):
                record = next(scan_records(data, position))
                topic, properties_bytes = record.topic, len(record.properties)
                queue, next_offset = (topic, -1), -1
                if magic == MAGIC_V1 and not sys_flag & SYS_HOST_MASK:
                    field_bytes = 1 + len(topic) + 2
                    field = data[field_at : field_at + field_bytes]
                    fixed_bytes = RECORD_HEAD_BYTES + field_bytes + properties_bytes
                else:
                    fixed_bytes = -1  # as no sound record has it: the next one is read field by field, too
            if queue_id != queue[1] or queue_offset != next_offset:
                queue = (topic, queue_id)
                first, units = open_runs.get(queue, (-1, units))
                if first < 0 or first + len(units) != queue_offset:
                    if first >= 0:
                        closed.append((topic, queue_id, first, b"".join(units)))
                    units = []
                    open_runs[queue] = (queue_offset, units)
            code = 0
            properties_at = end - properties_bytes
            if find(_TAGS_MARK, properties_at, end) >= 0:
                code = tag_code_of(data[properties_at:end])
            units.append(pack(log_position + position, size, code))
            next_offset = queue_offset + 1
            position = end
    except error as cause:
        raise RecordError(f"no record at byte {position}: only {stop - position} bytes are left") from cause
    return closed + [(name, number, first, b"".join(units)) for (name, number), (first, units) in open_runs.items()]
