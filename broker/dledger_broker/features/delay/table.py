"""Table of due messages: how many are pending, and how large, in each stretch of the log.

It knows no single row: what is due when is in the time index, which each node derives from the log. These counters are
what decides on all nodes alike whether the log may be trimmed: below a position nothing may go while a row below it is
pending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.delay.commands import (
    AddTimers,
    EndTimers,
    TimerRow,
    TimerRows,
)
from dledger_broker.kernel.commands import Command, RawHandler
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Frame, Table, TableKey, in_slices

STRETCH_BYTES: Final = 64 << 10
"""Rows are counted by stretches of the log of this many bytes: no segment is smaller, and replicas need not know how
large theirs are.
"""


class Pending(NamedTuple):
    """How many rows are pending, and the bytes of their records."""

    rows: int
    bytes: int


NOTHING: Final = Pending(0, 0)


class TimerFrame(msgspec.Struct, frozen=True, tag="timers"):
    """Stretches with pending rows as (where it begins, rows, bytes)."""

    stretches: list[tuple[int, int, int]]


class EndedTimersFrame(msgspec.Struct, frozen=True, tag="ended-timers"):
    """The position below which rows count no more."""

    below: int


class RowsListener(Protocol):
    """Told which rows were added and are gone, after the entries that were committed together."""

    def __call__(self, added: Sequence[TimerRow], gone: Sequence[tuple[int, int]], end: int) -> None:
        """Rows that are pending now, those that are so no longer (due, position), and the end of the last entry."""


class TimerTable(Table):
    """The counters; `total` is what is pending in all.

    `listener` and `on_ended` are a node's own: they are told of rows that came and went, and of the position below
    which they were ended, for the time index. `lost` is how many were ended since this state was put in place.

    Stretches are kept in the order of the log, at whose end rows are added: there may be 160,000 of them, and the
    lowest are asked for often.
    """

    __slots__ = (
        "_added",
        "_contributions",
        "_ended_now",
        "_gone",
        "_hash_due",
        "_rows_end",
        "_stretches",
        "_sum",
        "ended_below",
        "listener",
        "lost",
        "on_ended",
        "total",
    )

    frames = (TimerFrame, EndedTimersFrame)

    def __init__(self) -> None:
        self.total = NOTHING
        self.ended_below = 0
        self.listener: RowsListener | None = None
        self.on_ended: Callable[[int], None] | None = None
        self.lost = 0
        self._ended_now = False
        self._stretches: dict[int, Pending] = {}
        self._added: list[TimerRow] = []
        self._gone: list[tuple[int, int]] = []
        self._rows_end = 0
        self._sum = 0
        self._contributions: dict[int, int] = {}
        self._hash_due: set[int] = set()

    @property
    def digest(self) -> int:
        """See `Table.digest`; that of an empty table is 0."""
        for stretch in self._hash_due:
            pending = self._stretches.get(stretch)
            after = item_hash("timers", stretch, *pending) if pending is not None else 0
            self._sum = (self._sum - self._contributions.pop(stretch, 0) + after) & MASK
            if after:
                self._contributions[stretch] = after
        self._hash_due.clear()
        ended = item_hash("ended-timers", self.ended_below) if self.ended_below else 0
        return (self._sum + ended) & MASK

    @property
    def lowest(self) -> int | None:
        """Where the lowest stretch with pending rows begins; None if nothing is pending."""
        return next(iter(self._stretches), None)

    def below(self, position: int) -> Pending:
        """What is pending in stretches that begin below a position; the log may be trimmed there if it is nothing."""
        rows = size = 0
        for stretch, pending in self._stretches.items():
            if stretch >= position:
                break
            rows += pending.rows
            size += pending.bytes
        return Pending(rows, size)

    def stretches(self) -> Mapping[int, Pending]:
        """What is pending in each stretch, by where it begins; to be read."""
        return self._stretches

    def raw_handler(self, command: type[Command]) -> RawHandler:
        """See `Table.raw_handler`."""
        if command is EndTimers:
            return self._end
        if command is AddTimers:
            return self._add
        return self._remove

    def batch_applied(self, now: Callable[[], float]) -> None:
        """See `Table.batch_applied`."""
        _ = now
        if self._ended_now:
            self._ended_now = False
            if self.on_ended is not None:
                self.on_ended(self.ended_below)
        if not (self._added or self._gone):
            return
        added, gone, self._added, self._gone = self._added, self._gone, [], []
        if self.listener is not None:
            self.listener(added, gone, self._rows_end)

    def _add(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        for row in TimerRows.unpack(payload):
            self._count(row[1], 1, row[2])
            self._added.append(row)
        self._rows_end = entry.end

    def _remove(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        for due_ms, position, size in TimerRows.unpack(payload):
            self._count(position, -1, -size)
            self._gone.append((due_ms, position))
        self._rows_end = entry.end

    def _end(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """A stretch that begins below the position ends as a whole: it may be half above."""
        _ = entry
        below = EndTimers.from_payload(payload).below
        ended = self.below(below)
        for stretch in [stretch for stretch in self._stretches if stretch < below]:
            self._put(stretch, NOTHING)
        self.ended_below = max(self.ended_below, below + -below % STRETCH_BYTES)
        self.lost += ended.rows
        self._ended_now = True

    def _count(self, position: int, rows: int, size: int) -> None:
        """A row that is ended already, but was on its way to be fired, counts no more."""
        if position < self.ended_below:
            return
        stretch = position - position % STRETCH_BYTES
        before = self._stretches.get(stretch, NOTHING)
        self._put(stretch, Pending(before.rows + rows, before.bytes + size))

    def _put(self, stretch: int, after: Pending) -> None:
        before = self._stretches.get(stretch, NOTHING)
        self.total = Pending(self.total.rows + after.rows - before.rows, self.total.bytes + after.bytes - before.bytes)
        if after == NOTHING:
            self._stretches.pop(stretch, None)
        else:
            last = next(reversed(self._stretches), 0)
            self._stretches[stretch] = after
            if before == NOTHING and stretch < last:
                self._stretches = dict(sorted(self._stretches.items()))
        self._hash_due.add(stretch)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        _ = now
        captured: dict[str, Iterable[Frame]] = {}
        if self._stretches:
            rows = [(stretch, *pending) for stretch, pending in self._stretches.items()]
            captured["timers"] = map(TimerFrame, in_slices(rows))
        if self.ended_below:
            captured["ended-timers"] = [EndedTimersFrame(self.ended_below)]
        return captured

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        _ = now
        match frame:
            case TimerFrame(stretches=stretches):
                for stretch, rows, size in stretches:
                    self._put(stretch, Pending(rows, size))
            case EndedTimersFrame(below=below):
                self.ended_below = below


TIMERS: Final = TableKey("timers", TimerTable)
