"""The rows of remembered sends (`remembered`) in the order of the log, and the index that finds them by family.

Rows are numbered in the order in which they were added and lie in *eras* of `ERA_ROWS` rows, which leave as a whole.
The index is a hash table: the last bits of a family name a place, which has the number of the newest row with these
bits, and each indexed row has the number of the one before it. A number below the first kept row ends such a chain, so
that nothing is ever taken out of the table. When there are more rows than it was made for, a larger one is made beside
it, a slice at a time with the rows that are indexed meanwhile, and takes its place when it has all of them: what is
looked up costs one random access to memory most of the time.

Places and chains have the last 32 bits of numbers. 2^32 rows later an old number may seem to be that of a row which is
kept; it leads to rows of other families, which are passed over like all that share a place. Along a chain numbers
fall, or it ends.
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
"""Places of the smallest hash table, so that few rows need little memory."""
GROWTH: Final = 4
"""How many times larger the next one is, and how many places there are at least for each row, up to the number of rows
that there may ever be."""
MAX_STEPS: Final = 1_000
"""Rows that are looked at for one family, the newest ones. A place leads to about one; only rows that were made to
collide on purpose are more."""
RUN_ROWS: Final = 4_096
"""Rows of a run in a snapshot."""
MIN_COLUMN: Final = 128
"""Fewer families than this are not worth looking up as a column: what that takes at once is not in the processor's
caches when an entry of a few dozen sends needs it.
"""

_MASK: Final = 0xFFFFFFFF


class Row(NamedTuple):
    """Sends of one family that follow each other in the log: their members, as bits, and where the first one lies."""

    members: int
    position: int


class Run(NamedTuple):
    """Some rows in columns of big-endian numbers."""

    families: bytes
    members: bytes
    positions: bytes

    @classmethod
    def of(cls, columns: bytes) -> Run:
        """The rows in these bytes: all families, all members, all positions."""
        rows = len(columns) // ROW_BYTES
        members_at, positions_at = rows * FAMILY_BYTES, rows * (FAMILY_BYTES + MEMBERS_BYTES)
        return cls(columns[:members_at], columns[members_at:positions_at], columns[positions_at:])


class _Era:
    """Rows that were added one after the other; `before` is there for those of them that are indexed, and
    `before_in_next` for those that are in the next hash table.
    """

    __slots__ = ("before", "before_in_next", "families", "members", "positions")

    def __init__(self) -> None:
        self.families: array[int] = array("I")
        self.members: array[int] = array("H")
        self.positions: array[int] = array("Q")
        self.before: array[int] = array("I")
        self.before_in_next: array[int] = array("I")


class _Heads:
    """A hash table of the newest rows; `end` is the number behind the last row in it."""

    __slots__ = ("end", "mask", "numbers", "view")

    def __init__(self, places: int) -> None:
        """`places` is a power of 2.

        Memory is taken in small pages: numpy would ask for huge ones, and the first rows, at random places, would wait
        for all of the table to be zeroed.
        """
        self.numbers: NDArray[np.uint32] = np.frombuffer(mmap(-1, places * PLACE_BYTES), np.uint32)
        self.view = self.numbers.data
        self.mask = places - 1
        self.end = 0

    def put(self, families: NDArray[np.uint32], first_number: int) -> NDArray[np.uint32]:
        """Index rows; returns the number before each of them."""
        places = families & np.uint32(self.mask)
        numbers = np.arange(len(places), dtype=np.uint32) + np.uint32(first_number & _MASK)
        before: NDArray[np.uint32] = self.numbers[places]
        self.numbers[places] = numbers
        if (self.numbers[places] != numbers).any():  # some of them share a place
            in_order = np.argsort(places, kind="stable")
            places = places[in_order]
            again = np.flatnonzero(places[1:] == places[:-1])
            before[in_order[again + 1]] = numbers[in_order[again]]
            newest = np.append(places[1:] != places[:-1], True)
            self.numbers[places[newest]] = numbers[in_order[newest]]
        self.end = first_number + len(places)
        return before


class Rows:
    """See the module's description."""

    __slots__ = ("_end", "_eras", "_first", "_heads", "_in_next", "_indexed", "_kept_from", "_next_heads")

    def __init__(self, first_number: int) -> None:
        """No rows; `first_number`, above 0, is what the first one will have."""
        self._eras: list[_Era] = []
        self._heads: _Heads | None = None
        self._next_heads: _Heads | None = None
        self._first = first_number
        self._end = first_number
        self._kept_from = first_number
        self._indexed = first_number
        self._in_next = first_number

    def __len__(self) -> int:
        """Rows that are there, some included that were to be forgotten."""
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
        """Find nothing below a number any more, and let go of it era by era."""
        self._kept_from = first_number
        while self._first + ERA_ROWS <= first_number and self._eras:
            del self._eras[0]
            self._first += ERA_ROWS
        self._indexed = max(self._indexed, self._first)
        self._in_next = max(self._in_next, self._first)
        if self._heads is not None and self._heads.end <= first_number:
            self._let_go()

    # ---------------------------------------------------------------- the index

    def index(self, max_rows: int, most_rows: int) -> bool:
        """Index rows that are not, at most so many; False if there are more. `most_rows` is how many there may be."""
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
        """Put some more rows into the next hash table, which takes the place of the present one when it has all."""
        begin, self._in_next = self._in_next, min(self._indexed, self._in_next + rows)
        for era, row, end, number in self._parts(begin, self._in_next):
            before = heads.put(np.frombuffer(era.families[row:end], np.uint32), number)
            era.before_in_next.frombytes(before.tobytes())
        if self._in_next == self._indexed:
            self._heads, self._next_heads = heads, None
            for era in self._eras:
                era.before, era.before_in_next = era.before_in_next, array("I")

    def _let_go(self) -> None:
        """No row is indexed any more."""
        self._heads = self._next_heads = None
        for era in self._eras:
            era.before_in_next = array("I")

    def _parts(self, begin: int, end: int) -> Iterator[tuple[_Era, int, int, int]]:
        """The eras of a range of numbers: each with its first row, the one behind its last, and the first's number."""
        while begin < end:
            place, row = divmod(begin - self._first, ERA_ROWS)
            stop = min(ERA_ROWS, row + end - begin)
            yield self._eras[place], row, stop, begin
            begin += stop - row

    def _places_for(self, most_rows: int) -> int:
        """Places enough for all rows; one at least for each that there may ever be."""
        places = FIRST_PLACES
        while places < GROWTH * len(self):
            places *= GROWTH
        return min(places, max(FIRST_PLACES, 1 << most_rows.bit_length()))

    def known(self, families: Sequence[int]) -> Sequence[int]:
        """Those of the families of which there is an indexed row that is not forgotten, and perhaps more if that takes
        long to tell.
        """
        heads = self._heads
        if heads is None:
            return []
        first, candidates = self._kept_from & _MASK, families
        if first + self._indexed - self._kept_from > _MASK:
            pass  # numbers begin again at 0
        elif len(families) < MIN_COLUMN:
            view, mask = heads.view, heads.mask
            candidates = [family for family in families if view[family & mask] >= first]
        else:
            (kept,) = (heads.numbers.take(np.array(families, np.uint32) & np.uint32(heads.mask)) >= first).nonzero()
            candidates = [families[place] for place in kept.tolist()]
        return self._known(heads, candidates) if candidates else []

    def _known(self, heads: _Heads, candidates: Sequence[int]) -> Sequence[int]:
        """As `known`, where most candidates share their place with a row."""
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
        """The indexed rows of a family that are not forgotten, newest first."""
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
        """Where a row that is kept lies."""
        behind = number - self._first
        return self._eras[behind >> ERA_BITS], behind & (ERA_ROWS - 1)

    # ---------------------------------------------------------------- snapshots

    def runs(self, first_number: int) -> Iterator[Run]:
        """Yields the rows from a number on as they are now, in runs; later rows are left out."""
        eras = [(era, len(era.families)) for era in self._eras]
        return _runs(eras, first_number - self._first)


def _runs(eras: list[tuple[_Era, int]], skipped: int) -> Iterator[Run]:
    for era, count in eras:
        for begin in range(min(skipped, count), count, RUN_ROWS):
            end = min(begin + RUN_ROWS, count)
            yield Run(*(_big_endian(column[begin:end]) for column in (era.families, era.members, era.positions)))
        skipped = max(0, skipped - count)


def _big_endian(numbers: array[int]) -> bytes:
    """The big-endian form of numbers of which nobody else knows."""
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def _numbers(typecode: str, data: bytes) -> array[int]:
    """Numbers from their big-endian form."""
    numbers: array[int] = array(typecode, data)
    if byteorder == "little":
        numbers.byteswap()
    return numbers
