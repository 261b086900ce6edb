"""Sweep over the messages that wait below a position: the index tells them in slices, and they are written again.

Several units are on their way at a time, each of other rows. A row is moved if it is pending in the applied state and
nothing is on its way for it in the turn that stages the unit, as it is fired (`firing`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from dledger.environment import Environment
from dledger.errors import BusyError, LogFullError
from dledger_broker.features.delay.commands import TimerRow
from dledger_broker.features.delay.firing import MAX_SEGMENT_SHARE, fitting
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.progress import Progress
from dledger_broker.features.delay.reading import Readable, RecordReads
from dledger_broker.features.delay.records import written_again
from dledger_broker.features.delay.row_units import MoveUnit
from dledger_broker.features.delay.share import LogShare
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.units import Stored, UnitOutcome
from dledger_broker.views.timefile import Slice
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Key

MAX_UNIT_BYTES: Final = 4 << 20
MAX_UNIT_ROWS: Final = 1_000
"""Of small records: so many keep the event loop for some tens of milliseconds."""
MAX_IN_FLIGHT: Final = 4
"""Units that are on their way at a time."""
PAUSE_S: Final = 0.02
"""How soon it is looked again whether there is room for the next unit."""
BUSY_PAUSE_S: Final = 0.2
"""The log takes nothing now."""

_logger = logging.getLogger(__name__)


class Told(Protocol):
    """Who is told of units."""

    def __call__(self, progress: Progress, moved: int, lost: int) -> None:
        """A unit is applied."""


class Sweep:
    """One pass, in a run of the job; `is_over` once all rows were looked at, or the log takes no records."""

    def __init__(
        self,
        handle: JobHandle,
        machine: BrokerMachine,
        env: Environment,
        index: TimeIndex,
        in_flight: RowsInFlight,
        reads: RecordReads,
        share: LogShare,
        progress: Progress,
        told: Told,
        below: int,
        part: int,
    ) -> None:
        """Move what waits below `below`; one byte in `part` of the log is the sweep's while others wait for it."""
        self.is_over = False
        self._handle = handle
        self._machine = machine
        self._env = env
        self._index = index
        self._in_flight = in_flight
        self._reads = reads
        self._share = share
        self._progress = progress
        self._told = told
        self._below = below
        self._part = part
        self._rows: deque[TimerRow] = deque()
        self._resume: Key | None = None

    def begin(self) -> None:
        """Look for the first rows."""
        self._find(None)

    def _find(self, behind: Key | None) -> None:
        self._index.find(self._below, behind, self._handle.guarded(self._found))

    def _found(self, found: Slice | BaseException) -> None:
        if isinstance(found, BaseException):
            _logger.warning("event=timers_not_found error=%r", str(found))
            self.is_over = True
            return
        self._rows.extend(found.rows)
        self._resume = found.resume
        self._go_on()

    def _go_on(self) -> None:
        """Read what fits the next unit as soon as there is room for it."""
        if self._rows:
            if self._in_flight.moves >= MAX_IN_FLIGHT or not self._share.is_open:
                self._handle.call_later(PAUSE_S, self._go_on)
                return
            unit = self._next_rows()
            self._reads.read([row for row in unit if self._is_free(row)], self._handle.guarded(self._move))
        elif self._resume is not None:
            self._find(self._resume)
        else:
            self.is_over = True

    def _next_rows(self) -> list[TimerRow]:
        limit = min(MAX_UNIT_BYTES, self._machine.log.segment_bytes // MAX_SEGMENT_SHARE)
        sizes = [row[2] for row, _ in zip(self._rows, range(MAX_UNIT_ROWS), strict=False)]
        return [self._rows.popleft() for _ in range(fitting(sizes, limit))]

    def _is_free(self, row: TimerRow) -> bool:
        return row[1] not in self._in_flight and self._index.is_pending(row[1])

    def _move(self, read: Sequence[Readable]) -> None:
        unit = MoveUnit()
        for row, found in read:
            if not self._is_free(row):
                continue
            if found is not None:
                record, _ = found
                unit.done.append(row)
                unit.copies.append(written_again(record, record.topic, record.queue_id))
            elif self._progress.is_given_up(row, self._env.now()):
                unit.cancelled.append(row)
        if not unit.is_empty and not self._stage(unit):
            return
        self._handle.call_later(0.0, self._go_on)

    def _stage(self, unit: MoveUnit) -> bool:
        """Whether the log takes it; if not, the sweep goes on later, or ends."""
        positions, size = unit.positions, unit.size

        def settled(outcome: UnitOutcome) -> None:
            self._in_flight.moved(positions)
            self._share.settled(size)
            if isinstance(outcome, Stored):
                self._told(self._progress, len(unit.done), len(unit.cancelled))

        try:
            self._handle.write(unit.copies, unit.commands, done=settled)
        except BusyError:
            self._rows.extendleft(reversed([*unit.done, *unit.cancelled]))
            self._handle.call_later(BUSY_PAUSE_S, self._go_on)
            return False
        except LogFullError:
            self._progress.log_full = True
            self.is_over = True
            return False
        self._in_flight.move(positions)
        self._share.take(size, self._part)
        return True
