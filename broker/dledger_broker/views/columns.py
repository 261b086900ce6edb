"""Records of a buffer as columns of numbers (numpy), for work on many messages of equal layout."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, error
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dledger_remoting.errors import RecordError
from dledger_remoting.record import RECORD_HEAD_BYTES

Rows: TypeAlias = NDArray[np.int64]
"""Numbers of records in a buffer, or places in its bytes."""

MIN_ROWS: Final = 16
"""Minimum number of records that are worth reading as columns."""
HEAD_TYPE: Final = np.dtype(
    {
        "names": [
            "size",
            "magic",
            "queue_id",
            "queue_offset",
            "position",
            "sys_flag",
            "stored_ms",
            "body_bytes",
        ],
        "formats": [">i4", ">u4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i4"],
        "offsets": [0, 4, 12, 20, 28, 36, 56, 84],
        "itemsize": RECORD_HEAD_BYTES,
    }
)
"""A record head with IPv4 hosts."""

_SIZE: Final = Struct(">i")


def record_starts(data: bytes | memoryview, start: int, end: int) -> Sequence[int]:
    """Return the places where the records in `data[start:end]` begin, as a range if all have one size.

    That part must hold only records. Raises `RecordError` at a record whose size does not fit.
    """
    starts: list[int] = []
    add, unpack = starts.append, _SIZE.unpack_from
    position = start
    try:
        if end - start >= MIN_ROWS * RECORD_HEAD_BYTES:
            (size,) = unpack(data, start)
            if RECORD_HEAD_BYTES <= size <= (end - start) // MIN_ROWS and (end - start) % size == 0:
                sizes = np.ndarray(((end - start) // size,), ">i4", data, start, (size,))
                if (sizes == size).all():
                    return range(start, end, size)
        while position < end:
            (size,) = unpack(data, position)
            if size < RECORD_HEAD_BYTES:
                raise RecordError(f"no record at byte {position}: its size is {size}")
            add(position)
            position += size
    except error as cause:
        raise RecordError(f"no record at byte {position}: only {end - position} bytes are left") from cause
    if position > end:
        raise RecordError(f"no record at byte {starts[-1]}: it ends {position - end} bytes behind its entry's records")
    return starts


def as_rows(places: Sequence[int]) -> Rows:
    """Return the places as an array."""
    if isinstance(places, range):
        return np.arange(places.start, places.stop, places.step, dtype=np.int64)
    return np.array(places, np.int64)


def bytes_at(data: bytes | memoryview, places: Rows, length: int) -> NDArray[np.void]:
    """Return `length` bytes from each of these places."""
    everywhere = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    return everywhere[places]


def heads_at(data: bytes | memoryview, starts: Rows) -> NDArray[np.void]:
    """Return the heads of the records that begin at these places, as `HEAD_TYPE`."""
    return bytes_at(data, starts, RECORD_HEAD_BYTES).view(HEAD_TYPE)
