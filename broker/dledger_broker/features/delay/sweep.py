"""Sweep over the messages that wait below a position: reads their rows from the index in slices, and writes them again.

Several units are in flight at a time, each of other rows. A row is moved only if it is pending in the applied state and
has no change in flight. As in `firing`, this is checked in the turn that stages the unit.
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
from dledger_broker.features.delay.table import STRETCH_BYTES
from dledger_broker.kernel.earlier_logs import nobody_has_more
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.units import Stored, UnitOutcome
from dledger_broker.views.timefile import Slice
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Key

MAX_UNIT_BYTES: Final = 4 << 20
MAX_UNIT_ROWS: Final = 1_000
"""Maximum number of rows in a unit. With small records they keep the event loop busy for some tens of milliseconds."""
MAX_IN_FLIGHT: Final = 4
"""Maximum number of units in flight."""
PAUSE_S: Final = 0.02
"""Interval in seconds between checks for room for the next unit."""
BUSY_PAUSE_S: Final = 0.2
"""Pause in seconds after the log has refused a unit."""

_logger = logging.getLogger(__name__)


class UnitCallback(Protocol):
    """Callback for the applied units of a sweep."""

    def __call__(self, progress: Progress, moved: int, lost: int) -> None:
        """Note that a unit is applied."""


class Sweep:
    """One pass over the index, in a run of the job.

    `is_over` is True once all rows were read, or if the log takes no records.
    """

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
        on_unit_applied: UnitCallback,
        end_position: int,
        part: int,
    ) -> None:
        """Prepare to move messages below `end_position`.

        While other writers wait for the log, the sweep gets one byte in `part`.
        """
        self.is_over = False
        self._handle = handle
        self._machine = machine
        self._env = env
        self._index = index
        self._in_flight = in_flight
        self._reads = reads
        self._share = share
        self._progress = progress
        self._on_unit_applied = on_unit_applied
        self._end_position = end_position
        self._part = part
        self._rows: deque[TimerRow] = deque()
        self._resume: Key | None = None

    def begin(self) -> None:
        """Search for the first rows."""
        self._find(None)

    def _find(self, after: Key | None) -> None:
        self._index.find(self._end_position, after, self._handle.guarded(self._on_rows_found))

    def _on_rows_found(self, result: Slice | BaseException) -> None:
        if isinstance(result, BaseException):
            _logger.warning("event=timers_not_found error=%r", str(result))
            self.is_over = True
            return
        self._rows.extend(result.rows)
        self._resume = result.resume
        self._read_next()

    def _read_next(self) -> None:
        """Read the rows of the next unit once there is room for it."""
        if self._rows:
            if self._in_flight.moves >= MAX_IN_FLIGHT or not self._share.is_open:
                self._handle.call_later(PAUSE_S, self._read_next)
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
        for row, result in read:
            if not self._is_free(row):
                continue
            if result is not None:
                record, _ = result
                unit.done.append(row)
                unit.copies.append(written_again(record, record.topic, record.queue_id))
            elif self._is_gone(row):
                unit.cancelled.append(row)
            else:  # the row stays, and the next sweep tries it again
                self._machine.log.read_failed(row[1])
        if not unit.is_empty and not self._stage(unit):
            return
        self._handle.call_later(0.0, self._read_next)

    def _is_gone(self, row: TimerRow) -> bool:
        """Return whether no node has a record any more, in the stretch in which the log begins.

        Rows below that stretch are ended by stretches (`moving`).
        """
        first = self._machine.log.first_position
        return first - first % STRETCH_BYTES <= row[1] < first and nobody_has_more(self._machine.log)

    def _stage(self, unit: MoveUnit) -> bool:
        """Write a unit and return True. If the log refuses it, return False, and continue later or end the sweep."""
        positions, size = unit.positions, unit.size

        def on_settled(outcome: UnitOutcome) -> None:
            self._in_flight.moved(positions)
            self._share.settled(size)
            if isinstance(outcome, Stored):
                self._on_unit_applied(self._progress, len(unit.done), len(unit.cancelled))

        try:
            self._handle.write(unit.copies, unit.commands, done=on_settled, privileged=True)
        except BusyError:
            self._rows.extendleft(reversed([*unit.done, *unit.cancelled]))
            self._handle.call_later(BUSY_PAUSE_S, self._read_next)
            return False
        except LogFullError:
            self._progress.log_full = True
            self.is_over = True
            return False
        self._in_flight.move(positions)
        self._share.take(size, self._part)
        return True
