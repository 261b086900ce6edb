"""Checksums of units in the files of consume queues.

The tag hash of a unit has 32 bits, and its field has 64. In files the upper 32 bits are a checksum, the *stamp*. It is
chosen so that `crc32` leads from one state of the queue to the next:

    crc32(unit of offset n, state(n)) == state(n + 1)        state(n) = (seed + n) modulo 2^32

One `crc32` therefore verifies any number of consecutive units, over exactly their bytes, wherever they begin. `seed`
identifies the queue in this incarnation of its topic. Units of another queue or place fail, too.

A stamp follows from the other bytes: `crc32` is affine over the bits of data and state, and four adjacent bytes reach
every value. The tables hold the share of each byte of unit, state and next state in the stamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dledger_base import native_part
from dledger_base.checksum import crc32
from dledger_broker.views.units import UNIT_BYTES

STAMP_PLACE: Final = 12
"""Place of the stamp in a unit. It has four bytes."""
_STAMP_END: Final = STAMP_PLACE + 4
_MASK: Final = 0xFFFFFFFF
_STATE_BYTES: Final = 4
_ROW_BYTES: Final = UNIT_BYTES - 4 + 2 * _STATE_BYTES
_ZEROS: Final = bytes(UNIT_BYTES)


def state(seed: int, offset: int) -> int:
    """Return the state of `crc32` in front of the unit at a queue offset."""
    return (seed + offset) & _MASK


def are_whole(units: bytes, seed: int, offset: int) -> bool:
    """Return whether stamped units, the first of them at `offset`, are what was written there."""
    before = seed + offset  # as `state`, without its calls: every pull comes here
    return crc32(units, before & _MASK) == before + len(units) // UNIT_BYTES & _MASK


def stamped(runs: Sequence[tuple[bytes, int]]) -> list[bytes]:
    """Return runs of units as files have them, with stamps. Each run has the state in front of it."""
    part = native_part.PART
    found = None if part is None else part.stamp_units(runs)
    return stamp_in_python(runs) if found is None else found


def stamp_in_python(runs: Sequence[tuple[bytes, int]]) -> list[bytes]:
    """Return the same as the native part. All runs are done at once, because a call of numpy takes as long as tens of
    units.
    """
    if not runs:
        return []
    data = np.frombuffer(b"".join(units for units, _ in runs), np.uint8).reshape(-1, UNIT_BYTES)
    lengths = [len(units) // UNIT_BYTES for units, _ in runs]
    before = np.concatenate(
        [np.arange(first, first + length, dtype=np.uint64) for (_, first), length in zip(runs, lengths, strict=True)]
    )
    rows = np.empty((len(data), _ROW_BYTES), np.uint8)
    rows[:, :STAMP_PLACE] = data[:, :STAMP_PLACE]
    rows[:, STAMP_PLACE : UNIT_BYTES - 4] = data[:, _STAMP_END:]
    states = rows[:, UNIT_BYTES - 4 :].view()
    states[:, :_STATE_BYTES] = before.astype(np.uint32).astype(">u4").view(np.uint8).reshape(-1, _STATE_BYTES)
    states[:, _STATE_BYTES:] = (before + 1).astype(np.uint32).astype(">u4").view(np.uint8).reshape(-1, _STATE_BYTES)
    tables, constant = _tables()
    stamps = np.bitwise_xor.reduce(tables[_row_places() + rows], axis=1) ^ constant
    out = data.copy()
    out[:, STAMP_PLACE:_STAMP_END] = stamps.astype(">u4").view(np.uint8).reshape(-1, 4)
    ends = list(accumulate(lengths))
    return [out[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True)]


@cache
def _row_places() -> NDArray[np.intp]:
    return (np.arange(_ROW_BYTES, dtype=np.intp) * 256)[None, :]


@cache
def _tables() -> tuple[NDArray[np.uint32], np.uint32]:
    """Return the share of each value of each byte of a row in the stamp, and the constant share."""
    base = crc32(_ZEROS)
    to_stamp = _inverse([_crc_with(STAMP_PLACE + 3 - bit // 8, 1 << bit % 8) ^ base for bit in range(32)])
    places = [*range(STAMP_PLACE), *range(_STAMP_END, UNIT_BYTES)]
    tables: list[int] = []
    for place in places:
        tables += [_apply(to_stamp, _crc_with(place, value) ^ base) for value in range(256)]
    for shift in (24, 16, 8, 0):  # the state in front of the unit
        tables += [_apply(to_stamp, crc32(_ZEROS, value << shift) ^ base) for value in range(256)]
    for shift in (24, 16, 8, 0):  # the state behind it
        tables += [_apply(to_stamp, value << shift) for value in range(256)]
    return np.array(tables, np.uint32), np.uint32(_apply(to_stamp, base))


def _crc_with(place: int, value: int) -> int:
    """Return the `crc32` of a unit that is zero except for one byte."""
    unit = bytearray(UNIT_BYTES)
    unit[place] = value
    return crc32(unit)


def _apply(columns: list[int], value: int) -> int:
    """Return the product of a matrix over bits, given by its columns, and a vector."""
    result = 0
    for bit, column in enumerate(columns):
        if value >> bit & 1:
            result ^= column
    return result


def _inverse(columns: list[int]) -> list[int]:
    """Return the inverse of a matrix over bits, by Gauss-Jordan elimination on its columns."""
    size = len(columns)
    left, right = list(columns), [1 << number for number in range(size)]
    for bit in range(size):
        pivot = next(number for number in range(bit, size) if left[number] >> bit & 1)
        left[bit], left[pivot] = left[pivot], left[bit]
        right[bit], right[pivot] = right[pivot], right[bit]
        for number in range(size):
            if number != bit and left[number] >> bit & 1:
                left[number] ^= left[bit]
                right[number] ^= right[bit]
    return right
