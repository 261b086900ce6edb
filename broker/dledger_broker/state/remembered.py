"""Remembered sends: which opted-in sends of the last minutes are stored, and where.

    row: identity (4 bytes, a checksum), position (8 bytes): where the first record of the send lies in the log

An identity only finds candidates; whether a send is a repetition is decided by comparing it with the stored records.
Rows stand in the order of the log, in *eras* of about `ERA_ROWS` rows, and an era leaves as a whole when its last row
has expired. Adding rows costs next to nothing: they are put away when there are enough of them, or when somebody wants
to know, and indexed by whoever looks for them, which is the leader. A row needs 12 bytes, and 12 in the index; with the
expired rows of the oldest era that is 30 bytes for each of 4.2 million (2 minutes at 35,000 sends/s).

Rows expire by the store times of the entries that remember, made monotonic: `elapsed_ms` follows the highest store time
seen, by at most two windows for each step; a time that is more than a window behind is taken for the present one,
because then it was the highest that was wrong.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import byteorder
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from dledger_broker.state.digest import mix

IDENTITY_BYTES: Final = 4
POSITION_BYTES: Final = 8
ERA_ROWS: Final = 1 << 20
"""Rows of a full era; the command that fills it may add a few more."""
FIRST_ERA_ROWS: Final = 1 << 18
"""Rows of the first era, so that few rows need little memory."""
MAX_STEPS: Final = 1_000
"""Rows that are looked at for one identity, the newest ones. A head leads to about one; only rows that were made to
collide on purpose are more."""
RUN_ROWS: Final = 4_096
"""Rows of a run in a snapshot."""
MAX_WAITING_ROWS: Final = 16_384
"""Rows that wait to be put away together."""
MARKS_PER_WINDOW: Final = 128
"""The window is exact to this part of itself; a row is kept at least for the window."""


class Mark(NamedTuple):
    """From `position` on, rows were added at `elapsed_ms` or less than a step later; `added` rows were added before."""

    elapsed_ms: int
    position: int
    added: int


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Everything but the rows. `checksums` are those of all identities and of all positions there were."""

    window_ms: int
    max_rows: int
    elapsed_ms: int
    highest_ms: int
    added: int
    checksums: tuple[int, int]
    marks: list[Mark]


class Run(NamedTuple):
    """Some rows, their identities and their positions apart, as big-endian numbers."""

    identities: bytes
    positions: bytes


class Era:
    """Rows that were added one after the other, and a hash table that finds those of them that are indexed.

    Rows are counted from 1. The first bits of an identity name a head: the number of the newest row with these bits, or
    0; `chain` has for each indexed row the one before with the same bits.
    """

    __slots__ = ("capacity", "chain", "heads", "identities", "positions", "shift")

    def __init__(self, capacity: int) -> None:
        """`capacity`, a power of 2, is what the hash table is made for; more rows are only found more slowly."""
        self.capacity = capacity
        self.shift = 32 - capacity.bit_length()
        self.identities: array[int] = array("I")
        self.positions: array[int] = array("Q")
        self.heads: array[int] = array("I")
        self.chain: array[int] = array("I")

    def add(self, identities: bytes, positions: bytes) -> None:
        """Add rows, which are not indexed yet."""
        self.identities += _numbers("I", identities)
        self.positions += _numbers("Q", positions)

    def index(self, max_rows: int) -> int:
        """Index some more rows; returns how many."""
        if not self.heads:
            self.heads = array("I", (0,)) * (2 * self.capacity)
        heads, before, shift = self.heads, self.chain, self.shift
        begin = number = len(before)
        for identity in self.identities[begin : begin + max_rows]:
            place = identity >> shift
            number += 1
            before.append(heads[place])
            heads[place] = number
        return number - begin

    def find(self, identity: int) -> Iterator[int]:
        """The positions of the indexed rows with an identity, newest first."""
        number = self.heads[identity >> self.shift]
        for _ in range(MAX_STEPS):
            if not number:
                return
            if self.identities[number - 1] == identity:
                yield self.positions[number - 1]
            number = self.chain[number - 1]

    def run(self, begin: int, end: int) -> Run:
        """The rows behind the first `begin` up to row `end`."""
        return Run(_written(self.identities[begin:end]), _written(self.positions[begin:end]))


class RememberedSends:
    """See the module's description. `window_ms` 0 remembers nothing, and nothing was ever remembered then."""

    __slots__ = (
        "_added",
        "_checksums",
        "_elapsed_ms",
        "_eras",
        "_highest_ms",
        "_marks",
        "_waiting",
        "_waiting_rows",
        "max_rows",
        "window_ms",
    )

    def __init__(self) -> None:
        self.window_ms = 0
        self.max_rows = 0
        self._eras: deque[Era] = deque()
        self._marks: deque[Mark] = deque()
        self._elapsed_ms = 0
        self._highest_ms = 0
        self._added = 0
        self._checksums = (0, 0)
        self._waiting: list[tuple[bytes, bytes, int]] = []
        self._waiting_rows = 0

    def __len__(self) -> int:
        """Rows that have not expired."""
        self._put_away()
        return self._added - self._marks[0].added if self._marks else 0

    @property
    def kept_from(self) -> int:
        """Rows below this position have expired."""
        self._put_away()
        return self._marks[0].position if self._marks else 0

    @property
    def digest(self) -> int:
        """64 bits that tell two histories of additions and limits apart; 0 before the first limit."""
        if not self.window_ms:
            return 0
        self._put_away()
        of_identities, of_positions = self._checksums
        return mix(mix(mix(of_identities << 32 | of_positions, self._added), self.window_ms), self.max_rows)

    def limit(self, window_ms: int, max_rows: int) -> None:
        """Remember for so long, and no more than so many; the leader sees to the latter before it proposes."""
        self._put_away()
        self.window_ms = window_ms
        self.max_rows = max_rows

    def remember(self, identities: bytes, positions: bytes, store_ms: int) -> None:
        """Add rows, whose positions ascend and lie above all before, of an entry with this store time.

        Both are big-endian numbers, of `IDENTITY_BYTES` and `POSITION_BYTES`.
        """
        self._waiting.append((identities, positions, store_ms))
        self._waiting_rows += len(identities) // IDENTITY_BYTES
        if self._waiting_rows >= MAX_WAITING_ROWS:
            self._put_away()

    def index(self, max_rows: int) -> bool:
        """Index rows that are not, at most so many (0.2 µs for each); False if there may be more."""
        self._put_away()
        for era in self._eras:
            missing = len(era.identities) - len(era.chain)
            if missing:
                max_rows -= era.index(min(missing, max_rows))
                if max_rows <= 0:
                    return False
        return True

    def knows_none(self, identities: Sequence[int]) -> bool:
        """Whether no indexed row has one of these identities, expired ones included; False also if that takes long."""
        steps = 0
        for era in self._eras:
            heads, known, before, shift = era.heads, era.identities, era.chain, era.shift
            for identity in identities if heads else ():
                number = heads[identity >> shift]
                while number:
                    if known[number - 1] == identity:
                        return False
                    number = before[number - 1]
                    steps += 1
                    if steps > MAX_STEPS:
                        return False
        return True

    def find(self, identity: int) -> list[int]:
        """The positions of the indexed rows with this identity, newest first."""
        kept_from = self.kept_from
        positions = chain.from_iterable(era.find(identity) for era in reversed(self._eras) if era.heads)
        return [position for position in positions if position >= kept_from]

    def _put_away(self) -> None:
        """Add the rows that wait."""
        waiting, self._waiting = self._waiting, []
        self._waiting_rows = 0
        if not waiting:
            return
        for identities, positions, store_ms in waiting:
            self._pass_time(store_ms, int.from_bytes(positions[:POSITION_BYTES], "big"))
            self._added += len(identities) // IDENTITY_BYTES
        all_identities = b"".join([identities for identities, _, _ in waiting])
        all_positions = b"".join([positions for _, positions, _ in waiting])
        self._add(all_identities, all_positions)
        of_identities, of_positions = self._checksums
        self._checksums = (crc32(all_identities, of_identities), crc32(all_positions, of_positions))
        eras, kept_from = self._eras, self._marks[0].position
        while eras[0].positions[-1] < kept_from:
            eras.popleft()

    def _add(self, identities: bytes, positions: bytes) -> None:
        eras = self._eras
        if not eras:
            eras.append(Era(FIRST_ERA_ROWS))
        elif len(eras[-1].identities) >= eras[-1].capacity:
            eras.append(Era(ERA_ROWS))
        eras[-1].add(identities, positions)

    # ---------------------------------------------------------------- time

    def _pass_time(self, store_ms: int, position: int) -> None:
        if store_ms > self._highest_ms:
            self._elapsed_ms += min(store_ms - self._highest_ms, 2 * self.window_ms)
            self._highest_ms = store_ms
        elif store_ms < self._highest_ms - self.window_ms:
            self._highest_ms = store_ms
        marks, elapsed_ms = self._marks, self._elapsed_ms
        step_ms = self.window_ms // MARKS_PER_WINDOW
        if not marks or elapsed_ms - marks[-1].elapsed_ms >= step_ms:
            marks.append(Mark(elapsed_ms, position, self._added))
        while len(marks) > 1 and marks[0].elapsed_ms + step_ms <= elapsed_ms - self.window_ms:
            marks.popleft()

    # ---------------------------------------------------------------- snapshots

    def capture(self) -> tuple[Summary, Iterator[Run]]:
        """The table as it is now, and what yields its rows as they are now, in runs; later rows are left out."""
        self._put_away()
        summary = Summary(
            self.window_ms,
            self.max_rows,
            self._elapsed_ms,
            self._highest_ms,
            self._added,
            self._checksums,
            list(self._marks),
        )
        return summary, _runs([(era, len(era.identities)) for era in self._eras], self.kept_from)

    @classmethod
    def restored(cls, summary: Summary, runs: Iterable[Run]) -> RememberedSends:
        """A table from what `capture` gave."""
        table = cls()
        table.limit(summary.window_ms, summary.max_rows)
        table._elapsed_ms = summary.elapsed_ms
        table._highest_ms = summary.highest_ms
        table._added = summary.added
        table._checksums = summary.checksums
        table._marks = deque(summary.marks)
        for run in runs:
            table._add(run.identities, run.positions)
        return table


def _runs(eras: Iterable[tuple[Era, int]], kept_from: int) -> Iterator[Run]:
    """The rows from a position on, as many of each era as are given with it."""
    for era, count in eras:
        for begin in range(bisect_left(era.positions, kept_from, 0, count), count, RUN_ROWS):
            yield era.run(begin, min(begin + RUN_ROWS, count))


def _numbers(typecode: str, data: bytes) -> array[int]:
    """Numbers from their big-endian form."""
    numbers: array[int] = array(typecode, data)
    if byteorder == "little":
        numbers.byteswap()
    return numbers


def _written(numbers: array[int]) -> bytes:
    """The big-endian form of numbers of which nobody else knows."""
    if byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()
