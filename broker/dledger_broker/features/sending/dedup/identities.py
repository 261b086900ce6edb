"""Identities of sends: numbers under which sends are remembered, several of a unit in one row.

An identity has 48 bits: a *family* (32), which is a checksum, and one of 16 *members*, as a bit of its own. Producers
count in the last characters of their unique keys, in hexadecimal digits. Sends of one producer group to one topic are
of one family if their keys differ only in the last character, which is the member. A batch has a family of its own.

Consecutive sends of a unit are therefore mostly of one family. Together they need one row of the table (`rows`), one
look-up and one command, instead of up to 16 of each. Sends that share an identity by chance cost a comparison.
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
"""Maximum size of the records that are remembered together, because a repetition is compared with all of them."""
MANY_RUNS: Final = 4
"""Minimum average length of ascending runs of keys at which keys are processed run by run."""

_SINGLE: Final = (1 << 31) - 1
_BATCH: Final = 1 << 31
"""Bit of a family whose sends are batches. Batches are never remembered together."""
_NO_FAMILY: Final = 1 << 62
_LAST_DIGIT: Final = ord("F")
_ABOVE: Final = b"\xff"
"""Byte that no key has, because keys are UTF-8."""


def _number(byte: int) -> int:
    """Return the member number of a character: 0 to 15 for hexadecimal digits of either case.

    Up to `F` the number never falls from one character to the next.
    """
    if byte <= _LAST_DIGIT:
        return min(max(byte - ord("0"), 0), 9) if byte < ord("A") else byte - ord("A") + 10
    return byte - ord("a") + 10 if ord("a") <= byte <= ord("f") else 15


_NUMBER_OF: Final = tuple(map(_number, range(256)))
_MEMBER_OF: Final = tuple(1 << number for number in _NUMBER_OF)


class UnitRows(NamedTuple):
    """Rows that remember sends of a unit: family, members, and the offset in the unit at which the first member begins.

    The members are consecutive sends, as many as there are bits.
    """

    families: list[int]
    members: list[int]
    offsets: list[int]


NO_ROWS: Final = UnitRows([], [], [])


@lru_cache(maxsize=1024)
def identity_seed(group: str, topic: str, messages: int = 1) -> int:
    """Return the checksum, never 0, of a producer group, a topic and a number of messages.

    Sends that differ in one of these need no comparison, and do not wait for each other.
    """
    return crc32(f"{group}\x01{topic}\x01{messages}".encode()) or 1


def identity_of_batch(first_key: bytes, seed: int) -> int:
    """Return the identity of a batch whose first message has this unique key.

    Records do not show how many messages were sent as one batch, but the seed does.
    """
    return (crc32(first_key, seed) | _BATCH) << MEMBER_BITS | 1


def identities_of(keys: Sequence[bytes], seeds: Sequence[int]) -> list[int]:
    """Return the identities of sends of one message each with these unique keys and seeds.

    Without a key, the seed is the identity: that of a batch, or 0. With a seed of 0, the identity is 0.
    """
    return [
        (crc32(key[:-1], seed) & _SINGLE) << MEMBER_BITS | _MEMBER_OF[key[-1]] if key and seed else seed
        for key, seed in zip(keys, seeds, strict=True)
    ]


def rows_of_runs(keys: Sequence[bytes], seed: int, offsets: Sequence[int]) -> UnitRows | None:
    """Return the rows of `rows_of` for single messages with one seed and mostly ascending keys of one length, else
    None.

    Where keys count in steps of 1, the work is per row instead of per send.

    A key between two keys with a common prefix has the same prefix. Likewise, a member between two hexadecimal digits
    is a hexadecimal digit. If there are as many keys as their numbers differ by, each number occurs once.
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
    """Return the rows for consecutive sends of a unit with these identities, 0 for sends that are not remembered.

    `offsets` are the offsets in the unit at which the sends begin, and at which the last send ends.
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
