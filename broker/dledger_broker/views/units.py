"""Units of a consume queue: their bytes, and searches in them.

A unit is 20 bytes, big-endian:

    offset  size  field
         0     8  physical offset of the record
         8     4  size of the record
        12     4  in files the stamp, a checksum (`views/stamps.py`); in memory the sign of the tag code
        16     4  tag code: Java hash of the tag, signed, 0 without one

A file `consumequeue/<topic>/<queue id>/<20 digits>` holds 300,000 units (6,000,000 bytes). Its name is the byte at
which it starts in the queue. Unwritten units are zero. If a queue begins in the middle of a file, the units before are
fillers: physical offset 0, size 0x7fffffff, tag code 0. Format: RocketMQ's `ConsumeQueue`. Its tag code has all eight
bytes from 12 on, and its filters read the lower four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Final, TypeAlias

import numpy as np

from dledger.errors import CorruptionError

UNIT: Final = Struct(">qiq")
"""Layout of a new unit. `READ_UNIT` also reads units of files."""
READ_UNIT: Final = Struct(">qi4xi")
UnitFields: TypeAlias = tuple[int, int, int]
"""Position and size of a record, and the code of its tag."""
UNIT_TYPE: Final = np.dtype([("position", ">i8"), ("size", ">i4"), ("tag_code", ">i8")])
UNIT_BYTES: Final = 20
UNITS_PER_FILE: Final = 300_000
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = UNIT.pack(0, FILLER_SIZE, 0)


def is_record_unit(unit: bytes) -> bool:
    """Return whether 20 bytes are a unit of a record: neither unwritten nor a filler."""
    if len(unit) != UNIT_BYTES:
        return False
    position, size, _ = READ_UNIT.unpack(unit)
    return bool(position >= 0 and 0 < size < FILLER_SIZE)


def require_in_log(runs: Iterable[tuple[int, int]], end: int) -> None:
    """Raise `CorruptionError` if one of these positions and sizes is not in the log, whose applied end is `end`.

    A read of bytes that the log never had would end the node, and again at every start.
    """
    for position, size in runs:
        if size <= 0 or position + size > end:
            raise CorruptionError(
                f"a queue's file names {size} bytes at {position}, and the log ends at {end}: stop this node, delete"
                " its consumequeue directory and start it; it makes that anew"
            )


def first_where(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """Return the first number in [start, end) for which `holds`, or `end`. Once `holds` is true, it must stay true."""
    while start < end:
        middle = (start + end) // 2
        if holds(middle):
            end = middle
        else:
            start = middle + 1
    return start
