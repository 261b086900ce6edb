"""Identities of sends: the number under which one is remembered, and those of a unit that are remembered together.

An identity has 48 bits: a *family* (32), which is a checksum, and one of 16 *members*, as the bit that stands for it.
Producers count in the last characters of their unique keys, in hexadecimal digits. Sends of one producer group to one
topic whose keys differ in the last character only are of one family, and the last character is the member. A send
that is a batch has a family of its own.

So what follows each other in a unit is mostly of one family and takes one row of the table (`rows`), one look-up
and one command's worth of work instead of up to 16. Sends that have an identity in common by chance cost a comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import islice
from operator import lt, or_
from typing import Final, NamedTuple

from dledger_remoting.checksum import crc32

MEMBER_BITS: Final = 16
MEMBERS: Final = (1 << MEMBER_BITS) - 1
"""All members of a family, and the mask of an identity's member."""
MAX_ROW_BYTES: Final = 64 << 10
"""Records that are remembered together are no larger together: a repetition is looked for in all of them."""
MANY_RUNS: Final = 4
"""Keys of which no more than one in so many is not above the one before are taken run by run."""

_SINGLE: Final = (1 << 31) - 1
_BATCH: Final = 1 << 31
"""A family has the highest bit if its sends are batches: these are never remembered together."""
_NO_FAMILY: Final = 1 << 62
_LAST_DIGIT: Final = ord("F")
_ABOVE: Final = b"\xff"
"""No key, which is UTF-8, has this byte."""


def _number(byte: int) -> int:
    """The number of the member that a character stands for: 0 to 15 for hexadecimal digits of either case.

    Up to `F` it never falls from one character to the next.
    """
    if byte <= _LAST_DIGIT:
        return min(max(byte - ord("0"), 0), 9) if byte < ord("A") else byte - ord("A") + 10
    return byte - ord("a") + 10 if ord("a") <= byte <= ord("f") else 15


_NUMBER_OF: Final = tuple(map(_number, range(256)))
_MEMBER_OF: Final = tuple(1 << number for number in _NUMBER_OF)


class UnitRows(NamedTuple):
    """What of a unit is remembered: a family, some of its members, and where the first of them begins in the unit.

    The members follow each other, as many as there are bits.
    """

    families: list[int]
    members: list[int]
    offsets: list[int]


NO_ROWS: Final = UnitRows([], [], [])


@lru_cache(maxsize=1024)
def identity_seed(group: str, topic: str, messages: int = 1) -> int:
    """The checksum, never 0, of a producer group, a topic and a number of messages: sends that differ in one of these
    are told apart without a comparison, and do not wait for one another.
    """
    return crc32(f"{group}\x01{topic}\x01{messages}".encode()) or 1


def identity_of_batch(first_key: bytes, seed: int) -> int:
    """The identity of a batch whose first message has this unique key.

    Records do not show how many messages were sent as one batch, the seed does.
    """
    return (crc32(first_key, seed) | _BATCH) << MEMBER_BITS | 1


def identities_of(keys: Sequence[bytes], seeds: Sequence[int]) -> list[int]:
    """The identities of sends of one message each with these unique keys and seeds.

    Where there is no key, the seed is taken for the identity: that of a batch, or 0. Where the seed is 0, that is it.
    """
    return [
        (crc32(key[:-1], seed) & _SINGLE) << MEMBER_BITS | _MEMBER_OF[key[-1]] if key and seed else seed
        for key, seed in zip(keys, seeds, strict=True)
    ]


def rows_of_runs(keys: Sequence[bytes], seed: int, offsets: Sequence[int]) -> UnitRows | None:
    """As `rows_of`, for sends of one message each that have one seed and mostly ascending keys of one length; None of
    others. Where keys count by ones there is a step for each row, and none for each send.

    Keys between two that begin alike begin like these, and so do the members between two that are hexadecimal digits:
    if they are as many as their numbers are apart, they have each of the numbers once.
    """
    if len(set(map(len, keys))) != 1 or not keys[0]:
        return None
    ascends = [*map(lt, keys, islice(keys, 1, None)), False]
    runs = ascends.count(False)
    if runs > 1 + len(keys) // MANY_RUNS:
        return None
    families: list[int] = []
    members: list[int] = []
    begins: list[int] = []
    begin, end = 0, 0 if runs > 1 else len(keys)
    while begin < len(keys):
        if begin == end:
            end = ascends.index(False, begin) + 1
        key = keys[begin]
        stem = key[:-1]
        behind = bisect_left(keys, stem + _ABOVE, begin + 1, end)
        last = keys[behind - 1][-1]
        low, high = _NUMBER_OF[key[-1]], _NUMBER_OF[last]
        family = crc32(stem, seed) & _SINGLE
        if last <= _LAST_DIGIT and high - low == behind - begin - 1:
            bits = (2 << high) - (1 << low)
        else:
            bits = reduce(or_, [_MEMBER_OF[other[-1]] for other in keys[begin:behind]])
        if bits.bit_count() == behind - begin and offsets[behind] - offsets[begin] <= MAX_ROW_BYTES:
            families.append(family)
            members.append(bits)
            begins.append(offsets[begin])
        else:
            for one in range(begin, behind):
                families.append(family)
                members.append(_MEMBER_OF[keys[one][-1]])
                begins.append(offsets[one])
        begin = behind
    return UnitRows(families, members, begins)


def rows_of(identities: Sequence[int], offsets: Sequence[int]) -> UnitRows:
    """What is remembered of sends that follow each other in a unit and have these identities, 0 for those that are not.

    `offsets` say where in the unit each begins, and where the last one ends.
    """
    families: list[int] = []
    members: list[int] = []
    begins: list[int] = []
    row, begin, all_members = identities[0], 0, MEMBERS
    for place, identity in enumerate([*identities, _NO_FAMILY]):
        if row ^ identity <= all_members:
            row |= identity
            continue
        sends, bits = place - begin, row & all_members
        if sends == 1 or (bits.bit_count() == sends and offsets[place] - offsets[begin] <= MAX_ROW_BYTES):
            if row:
                families.append(row >> MEMBER_BITS)
                members.append(bits)
                begins.append(offsets[begin])
        else:
            for one in range(begin, place):
                if identities[one]:
                    families.append(identities[one] >> MEMBER_BITS)
                    members.append(identities[one] & all_members)
                    begins.append(offsets[one])
        row, begin = identity, place
    return UnitRows(families, members, begins)
