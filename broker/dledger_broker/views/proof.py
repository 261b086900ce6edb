"""Proof that units, which can rot on the disk, name the records that they are to name: by what these say themselves.

A unit that was read from a file is believed once its record says the same place, queue and offset.  A pull proves so
what it answers; of units that it passes over, unread, it is looked at whether their records could follow one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 -- it is a class
from typing import Final

import numpy as np

from dledger.errors import CorruptionError
from dledger_broker.views.units import UNIT_TYPE
from dledger_remoting.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD_BYTES,
    SYS_BORN_HOST_V6,
    SYS_HOST_MASK,
    SYS_STORE_HOST_V6,
)

MIN_RECORD_BYTES: Final = 91
_HEAD: Final = Struct(">iI4xi4xqqi44xi")
"""Size, magic, queue id, queue offset, physical offset, sys flag, and, with IPv4 hosts, the length of the body."""
_SIZE: Final = Struct(">i")
_MAGICS: Final = (MAGIC_V1, MAGIC_V2)
_BODY_BYTES: Final = Struct(">i")
_V6_MORE_BYTES: Final = 12
LONGEST_HEAD_BYTES: Final = RECORD_HEAD_BYTES + 2 * _V6_MORE_BYTES


class RottenUnitsError(CorruptionError):
    """Units of a queue, from offset `begin` on and below `end`, are gone or contradict each other."""

    def __init__(self, topic: str, queue_id: int, begin: int, end: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.begin = begin
        self.end = end
        super().__init__(
            f"the units of {topic}/{queue_id} at offsets {begin} to {end - 1} are gone or contradict each other"
        )


@lru_cache(maxsize=1024)
def topic_field(topic: str, magic: int) -> bytes:
    """A topic as records have it behind their body."""
    name = topic.encode()
    return len(name).to_bytes(2 if magic == MAGIC_V2 else 1, "big") + name


def topic_place(head: bytes) -> int | None:
    """The byte of a record, from its start, at which its topic's field begins; None if this is no record's head."""
    size, magic, _, _, _, sys_flag, body_bytes = _HEAD.unpack_from(head)
    fixed_bytes = RECORD_HEAD_BYTES
    if sys_flag & SYS_HOST_MASK:
        fixed_bytes += _V6_MORE_BYTES * (bool(sys_flag & SYS_BORN_HOST_V6) + bool(sys_flag & SYS_STORE_HOST_V6))
        if len(head) < fixed_bytes:
            return None
        body_bytes = _BODY_BYTES.unpack_from(head, fixed_bytes - _BODY_BYTES.size)[0]
    if magic not in _MAGICS or not 0 <= body_bytes <= size - fixed_bytes:
        return None
    return fixed_bytes + int(body_bytes)


def says(head: bytes, position: int, size: int, queue_id: int, queue_offset: int) -> bool:
    """Whether a record's head says that it stands there, and has this place in a queue of this number."""
    found_size, _, found_queue_id, found_offset, found_position, _, _ = _HEAD.unpack_from(head)
    return (found_size, found_queue_id, found_offset, found_position) == (size, queue_id, queue_offset, position)


def are_records_of(
    runs: Sequence[tuple[int, int]],
    pieces: Sequence[bytes],
    topic: str,
    queue_id: int,
    begin: int,
    end: int,
    count: int,
) -> bool:
    """Whether the pieces of the log at `runs` hold `count` records of a queue, and nothing else.

    Their offsets ascend, from `begin` on and below `end`.  The first and the last of each piece are looked at: if there
    are no more records between them than offsets of the queue, which all have one, these are the queue's too.
    """
    left = count
    for (position, _), data in zip(runs, pieces, strict=True):
        last, number = _last_record(data, left)
        if not number:
            return False
        first_offset = _offset_of(data, 0, position, topic, queue_id)
        if not begin <= first_offset <= end - number:
            return False
        begin = first_offset + number
        if number > 1 and _offset_of(data, last, position + last, topic, queue_id) != begin - 1:
            return False
        left -= number
    return left == 0


def _last_record(data: bytes, most: int) -> tuple[int, int]:
    """Where the last record of a piece begins, and how many there are, up to `most`; 0 if they do not fill the piece.

    Each pull pays for this walk by the record, so nothing else is looked at: where it begins no record, `_offset_of` of
    the first says so, and where it leaves them, that of the last.
    """
    unpack, stop, at, last, number = _SIZE.unpack_from, len(data), 0, 0, 0
    try:
        while at < stop and number < most:
            last = at
            at += unpack(data, at)[0]
            number += 1
    except StructError:
        return 0, 0
    return (last, number) if at == stop and 0 <= last <= stop - MIN_RECORD_BYTES else (0, 0)


def _offset_of(data: bytes, at: int, position: int, topic: str, queue_id: int) -> int:
    """The offset of a record in a piece of the log, if it says that it stands there and is of the queue; else -1."""
    size, magic, of_queue, offset, stands_at, sys_flag, body_bytes = _HEAD.unpack_from(data, at)
    if of_queue != queue_id or stands_at != position:
        return -1
    place: int | None = RECORD_HEAD_BYTES + body_bytes
    if sys_flag & SYS_HOST_MASK or magic not in _MAGICS or not 0 <= body_bytes <= size - RECORD_HEAD_BYTES:
        place = topic_place(data[at : at + LONGEST_HEAD_BYTES])
    field = topic_field(topic, magic)
    if place is None or place + len(field) > size or not data.startswith(field, at + place):
        return -1
    return int(offset)


def may_be_read(runs: Iterable[tuple[int, int]], segment_bytes: int, end: int) -> bool:
    """Whether pieces lie inside segments, and below `end` of the log."""
    for position, size in runs:
        if position < 0 or size < MIN_RECORD_BYTES or position + size > end:
            return False
        if position // segment_bytes != (position + size - 1) // segment_bytes:
            return False
    return True


def may_follow(units: bytes, first_position: int, end: int) -> bool:
    """Whether records may lie where units say, one behind the other, from `first_position` of the log to `end`."""
    rows = np.frombuffer(units, UNIT_TYPE)
    positions, sizes = rows["position"].astype(np.int64), rows["size"].astype(np.int64)
    if not len(rows):
        return True
    ascend = bool((positions[1:] - positions[:-1] >= sizes[:-1]).all())
    return bool(
        ascend
        and (sizes >= MIN_RECORD_BYTES).all()
        and first_position <= positions[0]
        and 0 <= positions[-1] <= end - sizes[-1]
    )
