"""Rows of remembered sends (`remembered`) in the order of the log, and the index that finds them by family.

Rows are numbered in the order of their addition. They lie in *eras* of `ERA_ROWS` rows, which are dropped as a whole.
The index is a hash table. The last bits of a family select a place, which has the number of the newest row with these
bits. Each indexed row has the number of the previous row of its place. A number below the first kept row ends the
chain, so nothing is ever removed from the table. When the table gets too small, a larger table is filled beside it, a
slice at a time, together with the rows indexed meanwhile. It takes the first table's place once it has all rows. A
look-up mostly costs one random access to memory.

Places and chains have the last 32 bits of numbers. After 2^32 rows, an old number may equal the number of a kept row.
It leads to rows of other families, which are passed over like all rows that share a place. Along a chain numbers fall,
or the chain ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from mmap import mmap
from sys import byteorder
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FAMILY_BYTES: Final = 4
MEMBERS_BYTES: Final = 2
POSITION_BYTES: Final = 8
ROW_BYTES: Final = FAMILY_BYTES + MEMBERS_BYTES + POSITION_BYTES
PLACE_BYTES: Final = 4
ERA_BITS: Final = 18
ERA_ROWS: Final = 1 << ERA_BITS
FIRST_PLACES: Final = 1 << 18
"""Number of places of the smallest hash table, so that few rows need little memory."""
GROWTH: Final = 4
"""Factor by which the next hash table is larger.

It is also the minimum number of places for each row, up to a cap that the maximum number of rows sets.
"""
MAX_STEPS: Final = 1_000
"""Maximum number of rows checked for one family, newest first. A place usually leads to one row. Only collisions on
purpose give more.
"""
RUN_ROWS: Final = 4_096
"""Number of rows of a run in a snapshot."""
MIN_COLUMN: Final = 128
"""Minimum number of families that are looked up as a column.

For fewer families this does not pay: when an entry of a few dozen sends arrives, a column look-up misses the
processor's caches.
"""

_MASK: Final = 0xFFFFFFFF


class Row(NamedTuple):
    """Consecutive sends of one family in the log: their members, as bits, and the position of the first."""

    members: int
    position: int


class Run(NamedTuple):
    """Several rows in columns of big-endian numbers."""

    families: bytes
    members: bytes
    positions: bytes

    @classmethod
    def of(cls, columns: bytes) -> Run:
        """Return the rows in these bytes: all families, all members, all positions."""
        rows = len(columns) // ROW_BYTES
        members_at, positions_at = rows * FAMILY_BYTES, rows * (FAMILY_BYTES + MEMBERS_BYTES)
        return cls(columns[:members_at], columns[members_at:positions_at], columns[positions_at:])


class _Era:
    """Era of consecutive rows.

    `before` has the previous row numbers of the indexed rows, and `before_in_next` of the rows in the next table.
    """

    __slots__ = ("before", "before_in_next", "families", "members", "positions")

    def __init__(self) -> None:
        self.families: array[int] = array("I")
        self.members: array[int] = array("H")
        self.positions: array[int] = array("Q")
        self.before: array[int] = array("I")
        self.before_in_next: array[int] = array("I")


class _Heads:
    """Hash table of the newest rows. `end` is the number behind the last row in it."""

    __slots__ = ("end", "mask", "numbers", "view")

    def __init__(self, places: int) -> None:
        """Make an empty table of `places`, a power of 2.

        Memory is taken in small pages. Numpy would ask for huge pages, and the first rows, at random places, would wait
        until the whole table is zeroed.
        """
        self.numbers: NDArray[np.uint32] = np.frombuffer(mmap(-1, places * PLACE_BYTES), np.uint32)
        self.view = self.numbers.data
        self.mask = places - 1
        self.end = 0

    def put(self, families: NDArray[np.uint32], first_number: int) -> NDArray[np.uint32]:
        """Index rows, and return the previous row number of each."""
        places = families & np.uint32(self.mask)
        numbers = np.arange(len(places), dtype=np.uint32) + np.uint32(first_number & _MASK)
        before: NDArray[np.uint32] = self.numbers[places]
        self.numbers[places] = numbers
        if (self.numbers[places] != numbers).any():  # Some of the rows share a place.
            in_order = np.argsort(places, kind="stable")
            places = places[in_order]
            again = np.flatnonzero(places[1:] == places[:-1])
            before[in_order[again + 1]] = numbers[in_order[again]]
            newest = np.append(places[1:] != places[:-1], True)
            self.numbers[places[newest]] = numbers[in_order[newest]]
        self.end = first_number + len(places)
        return before


class Rows:
    """Rows of remembered sends and their index, as the module describes them."""

    __slots__ = ("_end", "_eras", "_first", "_heads", "_in_next", "_indexed", "_kept_from", "_next_heads")

    def __init__(self, first_number: int) -> None:
        """Make an empty collection, whose first row will have `first_number`, above 0."""
        self._eras: list[_Era] = []
        self._heads: _Heads | None = None
        self._next_heads: _Heads | None = None
        self._first = first_number
        self._end = first_number
        self._kept_from = first_number
        self._indexed = first_number
        self._in_next = first_number

    def __len__(self) -> int:
        """Number of rows present, including some that were to be forgotten."""
        return self._end - self._first

    def add(self, run: Run) -> None:
        """Add rows, which are not indexed yet."""
        begin, count = 0, len(run.families) // FAMILY_BYTES
        families, members, positions = (
            _numbers("I", run.families),
            _numbers("H", run.members),
            _numbers("Q", run.positions),
        )
        while begin < count:
            if self._end == self._first + len(self._eras) * ERA_ROWS:
                self._eras.append(_Era())
            era = self._eras[-1]
            end = min(count, begin + ERA_ROWS - len(era.families))
            era.families += families[begin:end]
            era.members += members[begin:end]
            era.positions += positions[begin:end]
            self._end += end - begin
            begin = end

    def forget(self, first_number: int) -> None:
        """Forget the rows below a number, and free them era by era."""
        self._kept_from = first_number
        while self._first + ERA_ROWS <= first_number and self._eras:
            del self._eras[0]
            self._first += ERA_ROWS
        self._indexed = max(self._indexed, self._first)
        self._in_next = max(self._in_next, self._first)
        if self._heads is not None and self._heads.end <= first_number:
            self._drop_index()

    # ---------------------------------------------------------------- the index

    def index(self, max_rows: int, most_rows: int) -> bool:
        """Index at most `max_rows` further rows.

        Return False if there are more. `most_rows` is the maximum number of rows.
        """
        places = self._places_for(most_rows)
        heads = self._heads = self._heads or _Heads(places)
        begin, self._indexed = self._indexed, min(self._end, self._indexed + max_rows)
        for era, row, end, number in self._parts(begin, self._indexed):
            era.before.frombytes(heads.put(np.frombuffer(era.families[row:end], np.uint32), number).tobytes())
        if self._next_heads is None and len(heads.numbers) < places:
            self._next_heads, self._in_next = _Heads(places), self._first
        if self._next_heads is not None:
            self._fill_next(self._next_heads, GROWTH * (self._indexed - begin))
        return self._indexed == self._end

    def _fill_next(self, heads: _Heads, rows: int) -> None:
        """Put more rows into the next hash table, which replaces the present table once it has all rows."""
        begin, self._in_next = self._in_next, min(self._indexed, self._in_next + rows)
        for era, row, end, number in self._parts(begin, self._in_next):
            before = heads.put(np.frombuffer(era.families[row:end], np.uint32), number)
            era.before_in_next.frombytes(before.tobytes())
        if self._in_next == self._indexed:
            self._heads, self._next_heads = heads, None
            for era in self._eras:
                era.before, era.before_in_next = era.before_in_next, array("I")

    def _drop_index(self) -> None:
        """Drop the index, because no row is indexed any more."""
        self._heads = self._next_heads = None
        for era in self._eras:
            era.before_in_next = array("I")

    def _parts(self, begin: int, end: int) -> Iterator[tuple[_Era, int, int, int]]:
        """Yield the eras of a range of numbers, each with its first row, the end of its rows, and the first row's
        number.
        """
        while begin < end:
            place, row = divmod(begin - self._first, ERA_ROWS)
            stop = min(ERA_ROWS, row + end - begin)
            yield self._eras[place], row, stop, begin
            begin += stop - row

    def _places_for(self, most_rows: int) -> int:
        """Return a number of places that is enough for all rows, but not much above the maximum number of rows."""
        places = FIRST_PLACES
        while places < GROWTH * len(self):
            places *= GROWTH
        return min(places, max(FIRST_PLACES, 1 << most_rows.bit_length()))

    def known(self, families: Sequence[int]) -> Sequence[int]:
        """Return the families that have an indexed and kept row. The result may have further families if an exact
        answer takes long.
        """
        heads = self._heads
        if heads is None:
            return []
        first, candidates = self._kept_from & _MASK, families
        if first + self._indexed - self._kept_from > _MASK:
            pass  # The numbers begin again at 0 here.
        elif len(families) < MIN_COLUMN:
            view, mask = heads.view, heads.mask
            candidates = [family for family in families if view[family & mask] >= first]
        else:
            (kept,) = (heads.numbers.take(np.array(families, np.uint32) & np.uint32(heads.mask)) >= first).nonzero()
            candidates = [families[place] for place in kept.tolist()]
        return self._known(heads, candidates) if candidates else []

    def _known(self, heads: _Heads, candidates: Sequence[int]) -> Sequence[int]:
        """Check candidates as `known` does, if most of them share their place with a row."""
        first_number = self._kept_from
        rows, steps, found = self._indexed - first_number, 0, []
        for family in candidates:
            ahead, below = (heads.view[family & heads.mask] - first_number) & _MASK, rows
            while ahead < below:
                era, row = self._place(first_number + ahead)
                if era.families[row] == family:
                    found.append(family)
                    break
                ahead, below = (era.before[row] - first_number) & _MASK, ahead
                steps += 1
                if steps > MAX_STEPS:
                    return candidates
        return found

    def find(self, family: int) -> list[Row]:
        """Return the indexed rows of a family that are kept, newest first."""
        found: list[Row] = []
        heads, first_number = self._heads, self._kept_from
        below = self._indexed - first_number
        if heads is None:
            return found
        ahead = (heads.view[family & heads.mask] - first_number) & _MASK
        for _ in range(MAX_STEPS):
            if ahead >= below:
                break
            era, row = self._place(first_number + ahead)
            if era.families[row] == family:
                found.append(Row(era.members[row], era.positions[row]))
            ahead, below = (era.before[row] - first_number) & _MASK, ahead
        return found

    def _place(self, number: int) -> tuple[_Era, int]:
        """Return the era of a kept row, and its place there."""
        behind = number - self._first
        return self._eras[behind >> ERA_BITS], behind & (ERA_ROWS - 1)

    # ---------------------------------------------------------------- snapshots

    def runs(self, first_number: int) -> Iterator[Run]:
        """Yield the present rows from a number on, in runs. Later rows are left out."""
        eras = [(era, len(era.families)) for era in self._eras]
        return _runs(eras, first_number - self._first)


def _runs(eras: list[tuple[_Era, int]], skipped: int) -> Iterator[Run]:
    for era, count in eras:
        for begin in range(min(skipped, count), count, RUN_ROWS):
            end = min(begin + RUN_ROWS, count)
            yield Run(*(_big_endian(column[begin:end]) for column in (era.families, era.members, era.positions)))
        skipped = max(0, skipped - count)


def _big_endian(numbers: array[int]) -> bytes:
    """Return numbers in big-endian form. The array is changed, so it must not be shared."""
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(typecode: str, data: bytes) -> array[int]:
    """Return numbers from their big-endian form."""
    numbers: array[int] = array(typecode, data)
    if byteorder == "little":
        numbers.byteswap()
    return numbers
