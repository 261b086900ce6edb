"""Remembered sends: which opted-in sends of the last minutes are stored, and where.

    row: identity (8 bytes, a hash), position (8 bytes): where the first record of the send lies in the log

An identity only finds candidates; whether a send is a repetition is decided by comparing it with the stored records.
Rows stand in 65,536 runs by the first two bytes of the identity, which a run leaves out, each in the order of the log:
what is searched for is found by a byte search in one short run, what has expired is the head of a run. A row needs
about 20 bytes of memory at a million rows, and less at more (2 minutes at 35,000 sends/s are 4.2 million).

Rows expire by the store times of the entries that remember, made monotonic: `elapsed_ms` follows the highest store time
seen, by at most two windows for each step; a time that is more than a window behind is taken for the present one,
because then it was the highest that was wrong.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple
from weakref import WeakSet
from zlib import crc32

import msgspec

from dledger_broker.state.digest import mix

ROW: Final = Struct(">QQ")
ROW_BYTES: Final = ROW.size
RUNS: Final = 1 << 16
_SPLIT: Final = Struct(">H14s")
_HELD_BYTES: Final = 14
"""A row in its run: the rest of the identity, and the position from byte `_POSITION` on."""
_POSITION: Final = 6
MARKS_PER_WINDOW: Final = 128
"""The window is exact to this part of itself; a row is kept at least for the window."""
SWEPT_RUNS: Final = 64
"""Runs that are relieved of expired rows each time rows are added."""


class Mark(NamedTuple):
    """From `position` on, rows were added at `elapsed_ms` or less than a step later; `added` rows were added before."""

    elapsed_ms: int
    position: int
    added: int


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Everything but the rows."""

    window_ms: int
    max_rows: int
    elapsed_ms: int
    highest_ms: int
    added: int
    checksum: int
    marks: list[Mark]


class _Capture:
    """While one of these is alive, no row is taken away."""

    __slots__ = ("__weakref__",)


class RememberedSends:
    """See the module's description. `window_ms` 0 remembers nothing, and nothing was ever remembered then."""

    __slots__ = (
        "_added",
        "_captures",
        "_checksum",
        "_elapsed_ms",
        "_highest_ms",
        "_marks",
        "_runs",
        "_swept",
        "_to_sweep",
        "max_rows",
        "window_ms",
    )

    def __init__(self) -> None:
        self.window_ms = 0
        self.max_rows = 0
        self._runs: list[bytearray | None] = []
        self._marks: deque[Mark] = deque()
        self._elapsed_ms = 0
        self._highest_ms = 0
        self._added = 0
        self._checksum = 0
        self._swept = 0
        self._to_sweep = 0
        self._captures: WeakSet[_Capture] = WeakSet()

    def __len__(self) -> int:
        """Rows that have not expired."""
        return self._added - self._marks[0].added if self._marks else 0

    @property
    def kept_from(self) -> int:
        """Rows below this position have expired."""
        return self._marks[0].position if self._marks else 0

    @property
    def digest(self) -> int:
        """64 bits that tell two histories of additions and limits apart; 0 before the first limit."""
        if not self.window_ms:
            return 0
        return mix(mix(mix(self._checksum, self._added), self.window_ms), self.max_rows)

    def limit(self, window_ms: int, max_rows: int) -> None:
        """Remember for so long, and no more than so many; the leader sees to the latter before it proposes."""
        self.window_ms = window_ms
        self.max_rows = max_rows
        if not self._runs:
            self._runs = [None] * RUNS

    def remember(self, rows: bytes, store_ms: int) -> None:
        """Add rows, whose positions ascend and lie above all before, of an entry with this store time."""
        self._pass_time(store_ms, int.from_bytes(rows[8:16], "big"))
        runs = self._runs
        for number, row in _SPLIT.iter_unpack(rows):
            run = runs[number]
            if run is None:
                runs[number] = bytearray(row)
            else:
                run += row
        self._added += len(rows) // ROW_BYTES
        self._checksum = crc32(rows, self._checksum)
        if self._to_sweep:
            self._sweep()

    def find(self, identity: int) -> list[int]:
        """The positions of the sends with this identity, oldest first."""
        run = self._runs[identity >> 48] if self._runs else None
        if run is None:
            return []
        wanted = (identity & 0xFFFFFFFFFFFF).to_bytes(_POSITION, "big")
        found: list[int] = []
        at = run.find(wanted)
        while at >= 0:
            if at % _HELD_BYTES == 0:
                position = int.from_bytes(run[at + _POSITION : at + _HELD_BYTES], "big")
                if position >= self.kept_from:
                    found.append(position)
            at = run.find(wanted, at + 1)
        return found

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
            self._to_sweep = RUNS

    def _sweep(self) -> None:
        """Take expired rows out of some runs."""
        if self._captures:
            return
        kept_from = self.kept_from
        for _ in range(min(SWEPT_RUNS, self._to_sweep)):
            self._swept = (self._swept + 1) % RUNS
            run = self._runs[self._swept]
            if run is not None and int.from_bytes(run[_POSITION:_HELD_BYTES], "big") < kept_from:
                del run[: _first_at_or_above(run, kept_from) * _HELD_BYTES]
                if not run:
                    self._runs[self._swept] = None
        self._to_sweep = max(0, self._to_sweep - SWEPT_RUNS)

    # ---------------------------------------------------------------- snapshots

    def capture(self) -> tuple[Summary, Iterator[tuple[int, bytes]]]:
        """The table as it is now, and what yields its runs as they are now, by number; later rows are left out."""
        summary = Summary(
            self.window_ms,
            self.max_rows,
            self._elapsed_ms,
            self._highest_ms,
            self._added,
            self._checksum,
            list(self._marks),
        )
        capture = _Capture()
        self._captures.add(capture)
        lengths = [0 if run is None else len(run) for run in self._runs]
        return summary, self._captured(capture, lengths, self.kept_from)

    def _captured(self, capture: _Capture, lengths: list[int], kept_from: int) -> Iterator[tuple[int, bytes]]:
        for number, length in enumerate(lengths):
            run = self._runs[number]
            if run is not None and length:
                rows = bytes(run[_first_at_or_above(run, kept_from) * _HELD_BYTES : length])
                if rows:
                    yield number, rows
        del capture

    @classmethod
    def restored(cls, summary: Summary, runs: Iterable[tuple[int, bytes]]) -> RememberedSends:
        """A table from what `capture` gave."""
        table = cls()
        table.limit(summary.window_ms, summary.max_rows)
        table._elapsed_ms = summary.elapsed_ms
        table._highest_ms = summary.highest_ms
        table._added = summary.added
        table._checksum = summary.checksum
        table._marks = deque(summary.marks)
        for number, rows in runs:
            table._runs[number] = bytearray(rows)
        return table


def _first_at_or_above(run: bytearray, position: int) -> int:
    """The number of the first row of a run that is not below a position."""

    def position_of(row: int) -> int:
        at = row * _HELD_BYTES
        return int.from_bytes(run[at + _POSITION : at + _HELD_BYTES], "big")

    return bisect_left(range(len(run) // _HELD_BYTES), position, key=position_of)
