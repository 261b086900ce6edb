"""Job that makes room for trims: messages that wait below a position that is to be trimmed are written again at the
log's end, with rows of their own.

If that gets nowhere while a disk is too full, or the log takes no records any more, the messages below the position are
given up (`EndTimers`): as messages are that nobody has read when a full disk trims them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import BusyError, LogError, LogFullError
from dledger_broker.features.delay.commands import CancelTimers, EndTimers, MoveTimers, TimerRow, added_rows
from dledger_broker.features.delay.firing import MAX_SEGMENT_SHARE, fitting
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.reading import Readable, RecordReads
from dledger_broker.features.delay.records import written_again
from dledger_broker.features.delay.table import TIMERS, Pending
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import FixedRows, NewRecord, Stored, Unknown
from dledger_broker.views.timefile import Slice
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Key
from dledger_remoting.record import MessageRecord

LOOK_S: Final = 1.0
MAX_UNIT_BYTES: Final = 4 << 20
BUSY_PAUSE_S: Final = 0.2
STUCK_S: Final = 60.0
"""So long a disk is too full, and moves get nowhere, before what waits is given up."""
GIVE_UP_S: Final = 600.0
"""A record below the position that cannot be read for so long is counted as lost."""

_logger = logging.getLogger(__name__)


class MoveTimersOutOfTheWay:
    """A leader's job; implements `dledger_broker.kernel.jobs.Job`.

    `moved` counts messages that were written again by this node, `lost` those that could not be read for too long.
    """

    name: Final = "timer_moves"

    def __init__(
        self, machine: BrokerMachine, env: Environment, index: TimeIndex, in_flight: RowsInFlight, reads: RecordReads
    ) -> None:
        self.moved = self.lost = 0
        self._machine = machine
        self._env = env
        self._index = index
        self._in_flight = in_flight
        self._reads = reads
        self._wanted = 0
        self._disk_full = False
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    def is_free_below(self, position: int) -> bool:
        """Whether nothing is pending below a position, so that the log may be trimmed there."""
        return not self._table.below(position).rows

    def want(self, position: int, *, disk_full: bool) -> None:
        """Leader: the log is to be trimmed below a position; `disk_full`: at any price."""
        self._wanted = position
        self._disk_full = disk_full

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`: the position that an earlier run was told is told again."""
        self._wanted, self._disk_full = 0, False
        self._look(handle, _Progress(self._env.now()))

    def _look(self, handle: JobHandle, progress: _Progress) -> None:
        left = self._table.below(self._wanted)
        progress.note(left, self._env.now())
        if not left.rows or self._in_flight.moving:
            handle.call_later(LOOK_S, partial(self._look, handle, progress))
        elif self._is_stuck(progress):
            self._end(handle, progress, left)
        else:
            self._find(handle, progress, None)

    def _is_stuck(self, progress: _Progress) -> bool:
        if progress.log_full:
            return True
        return self._disk_full and self._env.now() - progress.left_since >= STUCK_S

    def _find(self, handle: JobHandle, progress: _Progress, behind: Key | None) -> None:
        found = handle.guarded(partial(self._found, handle, progress))
        self._index.find(self._wanted, behind, found)

    def _found(self, handle: JobHandle, progress: _Progress, found: Slice | BaseException) -> None:
        if isinstance(found, BaseException):
            _logger.warning("event=timers_not_found error=%r", str(found))
            handle.call_later(LOOK_S, partial(self._look, handle, progress))
        else:
            self._go_on(handle, progress, found.rows, found.resume)

    def _go_on(self, handle: JobHandle, progress: _Progress, rows: Sequence[TimerRow], resume: Key | None) -> None:
        """Read as many of these rows as fit a unit, and move them; the others follow, and then the next slice."""
        if rows:
            limit = min(MAX_UNIT_BYTES, self._machine.log.segment_bytes // MAX_SEGMENT_SHARE)
            count = fitting([row[2] for row in rows], limit)
            wanted = [row for row in rows[:count] if self._is_free(row)]
            move = handle.guarded(partial(self._move, handle, progress, rows[count:], resume))
            self._reads.read(wanted, move)
        elif resume is not None:
            self._find(handle, progress, resume)
        else:
            handle.call_later(LOOK_S, partial(self._look, handle, progress))

    def _is_free(self, row: TimerRow) -> bool:
        return row[1] not in self._in_flight and self._index.is_pending(row[1])

    def _move(
        self,
        handle: JobHandle,
        progress: _Progress,
        rest: Sequence[TimerRow],
        resume: Key | None,
        read: Sequence[Readable],
    ) -> None:
        go_on = partial(self._go_on, handle, progress, rest, resume)
        moved: list[TimerRow] = []
        lost: list[TimerRow] = []
        copies: list[NewRecord] = []
        for row, record in read:
            if not self._is_free(row):
                continue
            if record is not None:
                moved.append(row)
                copies.append(_again(record))
            elif progress.is_given_up(row, self._env.now()):
                lost.append(row)
        if not (moved or lost):
            handle.call_later(0.0, go_on)
            return
        positions = [row[1] for row in (*moved, *lost)]
        go_on_then = handle.guarded(go_on)

        def settled(outcome: Stored | Unknown) -> None:
            self._in_flight.moved(positions)
            if isinstance(outcome, Stored):
                self.moved += len(moved)
                self.lost += len(lost)
            go_on_then()

        try:
            handle.write(copies, _commands(moved, lost), done=settled)
        except (BusyError, LogFullError) as error:
            progress.log_full = isinstance(error, LogFullError)
            handle.call_later(BUSY_PAUSE_S, partial(self._look, handle, progress))
            return
        self._in_flight.move(positions)

    def _end(self, handle: JobHandle, progress: _Progress, left: Pending) -> None:
        """Give up what waits below the position: a command alone, which may use what is kept back of the disk."""
        position = self._wanted
        _logger.warning("event=timers_ended below=%d messages=%d reason='no room to move them'", position, left.rows)
        progress.log_full = False
        looked = handle.guarded(partial(self._look, handle, progress))

        def ended(_error: LogError | None) -> None:
            looked()

        handle.stage_command(EndTimers(position), ended, privileged=True)


class _Progress:
    """What a run has seen: since when nothing has changed below the position, since when records are unreadable."""

    def __init__(self, now: float) -> None:
        self.left_since = now
        self.log_full = False
        self._left = Pending(0, 0)
        self._unreadable_since: dict[int, float] = {}

    def note(self, left: Pending, now: float) -> None:
        """So much is pending below the position now."""
        if left != self._left:
            self._left, self.left_since = left, now
        if not left.rows:
            self._unreadable_since.clear()

    def is_given_up(self, row: TimerRow, now: float) -> bool:
        """The record of a row could not be read; whether that has been so for too long."""
        return now - self._unreadable_since.setdefault(row[1], now) >= GIVE_UP_S


def _again(record: MessageRecord) -> NewRecord:
    return written_again(record, record.topic, record.queue_id)


def _commands(moved: Sequence[TimerRow], lost: Sequence[TimerRow]) -> list[MoveTimers | CancelTimers | FixedRows]:
    commands: list[MoveTimers | CancelTimers | FixedRows] = []
    if lost:
        commands.append(CancelTimers.of(lost))
    if moved:
        commands += (MoveTimers.of(moved), added_rows([(row[0], row[2]) for row in moved]))
    return commands
