"""Table of delayed messages: number and bytes of pending messages in each stretch of the log.

The table has no single rows. The time index, which each node derives from the log, knows which row is due when. From
these counters all nodes decide alike whether the log may be trimmed: nothing below a position while a row below it is
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
"""Size in bytes of a stretch of the log, the range of one counter.

No segment is smaller, so replicas may have different segment sizes.
"""


class Pending(NamedTuple):
    """Number of pending rows, and the bytes of their records."""

    rows: int
    bytes: int


NOTHING: Final = Pending(0, 0)


class TimerFrame(msgspec.Struct, frozen=True, tag="timers"):
    """Frame with the stretches that have pending rows, as (begin, rows, bytes)."""

    stretches: list[tuple[int, int, int]]


class EndedTimersFrame(msgspec.Struct, frozen=True, tag="ended-timers"):
    """Frame with the position below which no rows count any more."""

    below: int


class RowsListener(Protocol):
    """Callback for added and gone rows. It is called after the entries that were committed together."""

    def __call__(self, added: Sequence[TimerRow], removed: Sequence[tuple[int, int]], end: int) -> None:
        """Note rows that are pending now, rows that no longer are (due, position), and the end of the last entry."""


class TimerTable(Table):
    """Table of pending counters; `total` is their sum.

    `listener` and `on_ended` belong to a node's time index. They receive the rows that were added or removed, and the
    position below which rows were ended. `lost` counts rows that were ended since this state was put in place.

    Stretches are kept in the order of the log. There may be 160,000 of them, and the lowest are needed often. Rows are
    added at the end of the log, so the order is easy to keep.
    """

    __slots__ = (
        "_added",
        "_contributions",
        "_ended_now",
        "_hash_due",
        "_removed",
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
        self._removed: list[tuple[int, int]] = []
        self._rows_end = 0
        self._sum = 0
        self._contributions: dict[int, int] = {}
        self._hash_due: set[int] = set()

    @property
    def digest(self) -> int:
        """Return the digest of the counters; 0 for an empty table."""
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
        """Return where the lowest stretch with pending rows begins; None if nothing is pending."""
        return next(iter(self._stretches), None)

    def below(self, position: int) -> Pending:
        """Return what is pending in stretches that begin below a position. If nothing, the log may be trimmed there."""
        rows = size = 0
        for stretch, pending in self._stretches.items():
            if stretch >= position:
                break
            rows += pending.rows
            size += pending.bytes
        return Pending(rows, size)

    def stretches(self) -> Mapping[int, Pending]:
        """Return the pending counters of each stretch by its begin. Do not change the result."""
        return self._stretches

    def raw_handler(self, command: type[Command]) -> RawHandler:
        """Return the method that applies the payloads of a command."""
        if command is EndTimers:
            return self._end
        if command is AddTimers:
            return self._add
        return self._remove

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Report the changes by the applied entries to the time index."""
        _ = now
        if self._ended_now:
            self._ended_now = False
            if self.on_ended is not None:
                self.on_ended(self.ended_below)
        if not (self._added or self._removed):
            return
        added, removed, self._added, self._removed = self._added, self._removed, [], []
        if self.listener is not None:
            self.listener(added, removed, self._rows_end)

    def _add(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        for row in TimerRows.unpack(payload):
            self._count(row[1], 1, row[2])
            self._added.append(row)
        self._rows_end = entry.end

    def _remove(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        for due_ms, position, size in TimerRows.unpack(payload):
            self._count(position, -1, -size)
            self._removed.append((due_ms, position))
        self._rows_end = entry.end

    def _end(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """End all rows in stretches that begin below the position.

        The last of these stretches ends as a whole, although a part of it may be above the position.
        """
        _ = entry
        below = EndTimers.from_payload(payload).below
        ended = self.below(below)
        for stretch in [stretch for stretch in self._stretches if stretch < below]:
            self._put(stretch, NOTHING)
        self.ended_below = max(self.ended_below, below + -below % STRETCH_BYTES)
        self.lost += ended.rows
        self._ended_now = True

    def _count(self, position: int, rows: int, size: int) -> None:
        """Add to the counter of a stretch.

        A row below `ended_below` is not counted: it was ended while the unit that fires it was in flight.
        """
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
        _ = now
        captured: dict[str, Iterable[Frame]] = {}
        if self._stretches:
            rows = [(stretch, *pending) for stretch, pending in self._stretches.items()]
            captured["timers"] = map(TimerFrame, in_slices(rows))
        if self.ended_below:
            captured["ended-timers"] = [EndedTimersFrame(self.ended_below)]
        return captured

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case TimerFrame(stretches=stretches):
                for stretch, rows, size in stretches:
                    self._put(stretch, Pending(rows, size))
            case EndedTimersFrame(below=below):
                self.ended_below = below


TIMERS: Final = TableKey("timers", TimerTable)
