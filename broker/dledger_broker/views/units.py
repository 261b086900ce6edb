"""The bytes of a consume queue, and searches in them.

A unit is 20 bytes, big-endian:

    offset  size  field
         0     8  physical offset of the record
         8     4  size of the record
        12     8  tag code: Java hash of the tag, 0 without one

A file `consumequeue/<topic>/<queue id>/<20 digits>` holds 300,000 units (6,000,000 bytes) and is named by the byte at
which it starts in the queue; unwritten units are zero.  Where a queue begins in the middle of a file, the units before
are fillers: physical offset 0, size 0x7fffffff, tag code 0.  Format: RocketMQ's `ConsumeQueue`.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import numpy as np

from dledger.errors import CorruptionError

UNIT: Final = Struct(">qiq")
UNIT_TYPE: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
UNIT_BYTES: Final = 20
UNITS_PER_FILE: Final = 300_000
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)


def is_record_unit(unit: bytes) -> bool:
    """True if 20 bytes are a unit of a record: neither unwritten nor a filler."""
    if len(unit) != UNIT_BYTES:
        return False
    position, size, _ = UNIT.unpack(unit)
    return bool(position >= 0 and 0 < size < FILLER_SIZE)


def require_in_log(position: int, size: int, end: int) -> None:
    """Raise `CorruptionError` if a unit names no bytes of the log, of which `end` is the applied end.

    Units have no checksums. One that has rotted must not have the log asked for what it never had: that ends the node,
    again at every start.
    """
    if size <= 0 or position + size > end:
        raise CorruptionError(
            f"a queue's file names {size} bytes at {position}, and the log ends at {end}: stop this node, delete its"
            " consumequeue directory and start it; it makes that anew"
        )


def first_where(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """The first number in [start, end) for which `holds`, which must stay true once it is; `end` if there is none."""
    while start < end:
        middle = (start + end) // 2
        if holds(middle):
            end = middle
        else:
            start = middle + 1
    return start
