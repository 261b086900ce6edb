"""Job that delivers messages when they are due: copies in their real topics, and the fact that they are fired, in one
unit.  One such unit is on its way at a time; while sends wait for the log, a quarter of its bytes are such units.

A row is fired if it is pending in the applied state and nothing is on its way for it, which is looked at in the turn
that stages the unit: whatever was read or found before that may have changed meanwhile.

1. A row is found, and its record is being read from the disk. 2. A move of the same row is applied; its copy at the
log's end has a row of its own. 3. Fired by what was found first, the message would be delivered twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from dledger.environment import Environment
from dledger.errors import BusyError, LogFullError
from dledger_broker.features.delay.commands import TimerRow
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.reading import Readable, RecordReads
from dledger_broker.features.delay.records import Real, written_again
from dledger_broker.features.delay.row_units import FireUnit
from dledger_broker.features.delay.share import LogShare
from dledger_broker.features.delay.table import TIMERS
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import Stored, UnitOutcome
from dledger_broker.views.timeindex import TimeIndex
from dledger_remoting.record import MessageRecord

LOOK_S: Final = 0.01
"""Nothing that is due is noticed later than that."""
IDLE_LOOK_S: Final = 0.1
"""The same while nothing is pending at all."""
BUSY_PAUSE_S: Final = 0.2
"""The log takes nothing now."""
REPAIR_S: Final = 30.0
"""After so long a record that could not be read is tried again: the log may have healed it."""
MAX_ROWS: Final = 1_000
"""Rows that are looked at together."""
MAX_UNIT_BYTES: Final = 256 << 10
"""Copies of one unit, in a large segment; a larger message travels alone."""
MAX_SEGMENT_SHARE: Final = 4
"""No unit has more than this part of a segment."""
LOG_PART: Final = 4
"""While others wait for the log, one byte in so many is of messages that are due."""

_logger = logging.getLogger(__name__)


class FireTimersInTime:
    """A leader's job; implements `dledger_broker.kernel.jobs.Job`.

    `fired` counts messages that were delivered by this node, `unreadable` those that were set aside, `without_topic`
    those whose topic was gone.
    """

    name: Final = "timers"

    def __init__(
        self,
        machine: BrokerMachine,
        env: Environment,
        index: TimeIndex,
        in_flight: RowsInFlight,
        reads: RecordReads,
        share: LogShare,
        now_ms: Callable[[], int | None],
    ) -> None:
        self.fired = self.unreadable = self.without_topic = 0
        self._machine = machine
        self._env = env
        self._index = index
        self._in_flight = in_flight
        self._reads = reads
        self._share = share
        self._now_ms = now_ms
        self._topics_gone: set[str] = set()
        self._handle: JobHandle | None = None
        self._due_ms: int | None = None
        """When the first row was due of those that are being delivered."""
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        self._topics_gone.clear()
        self._handle, self._due_ms = handle, None
        self._share.begin()
        self._mend(handle)
        self._look(handle)

    @property
    def late_ms(self) -> int:
        """How long the messages that are being delivered have been due; 0 if none is, or another node delivers."""
        now_ms = self._now_ms()
        if self._due_ms is None or now_ms is None or self._handle is None or self._handle.is_stopped:
            return 0
        return max(0, now_ms - self._due_ms)

    def _mend(self, handle: JobHandle) -> None:
        handle.call_later(REPAIR_S, partial(self._mend, handle))
        self._index.take_back()

    def _look(self, handle: JobHandle) -> None:
        now_ms = self._now_ms()
        if not self._table.total.rows:
            self._due_ms = None  # the log had no room for the last one, and then it was recalled
            handle.call_later(IDLE_LOOK_S, partial(self._look, handle))
        elif now_ms is None or self._in_flight.fires:
            handle.call_later(LOOK_S, partial(self._look, handle))
        else:
            # Behind what is due, whatever is due by now: a row is due at its time, not before.
            self._index.due(now_ms + 1, MAX_ROWS, handle.guarded(partial(self._go_on, handle)))

    def _go_on(self, handle: JobHandle, rows: Sequence[TimerRow]) -> None:
        """Read as many of these rows as fit a unit, and fire them; the others follow."""
        self._due_ms = rows[0][0] if rows else None
        if not rows:
            handle.call_later(LOOK_S, partial(self._look, handle))
            return
        if not self._share.is_open:
            handle.call_later(LOOK_S, partial(self._go_on, handle, rows))
            return
        limit = min(MAX_UNIT_BYTES, self._machine.log.segment_bytes // MAX_SEGMENT_SHARE)
        count = fitting([row[2] for row in rows], limit)
        first, rest = rows[:count], rows[count:]
        wanted = [row for row in first if self._is_free(row)]
        self._reads.read(wanted, handle.guarded(partial(self._fire, handle, rest)))

    def _is_free(self, row: TimerRow) -> bool:
        return row[1] not in self._in_flight and self._index.is_pending(row[1])

    def _fire(self, handle: JobHandle, rest: Sequence[TimerRow], read: Sequence[Readable]) -> None:
        unit = FireUnit()
        for row, found in read:
            if not self._is_free(row):
                continue
            if found is None:
                self.unreadable += 1
                self._index.set_aside(row[1])
                _logger.warning("event=timer_unreadable position=%d consequence='tried again later'", row[1])
                continue
            self._take(unit, row, *found)
        if unit.is_empty:
            self._go_on(handle, rest)
            return
        positions, size = unit.positions, unit.size
        go_on = handle.guarded(partial(self._go_on, handle, rest))

        def settled(outcome: UnitOutcome) -> None:
            self._in_flight.fired(positions)
            self._share.settled(size)
            if isinstance(outcome, Stored):
                self.fired += len(unit.copies)
                self._note_without_topic(unit.topics_gone)
            go_on()

        try:
            handle.write(unit.copies, unit.commands, done=settled)
        except (BusyError, LogFullError):
            handle.call_later(BUSY_PAUSE_S, partial(self._look, handle))
            return
        self._in_flight.fire(positions)
        self._share.take(size, LOG_PART)

    def _take(self, unit: FireUnit, row: TimerRow, record: MessageRecord, real: Real) -> None:
        """Add the copy of a message. One whose topic is being deleted waits: the deletion may not come about."""
        if self._machine.proposals.topic_deleting(real.topic):
            return
        topic = self._machine.topic(real.topic)
        if topic is None:
            unit.topics_gone.append(real.topic)
        else:
            # A queue that consumers read: there may be fewer than when the message was sent.
            queues = max(1, topic.config.read_queue_nums)
            unit.copies.append(written_again(record, real.topic, real.queue_id % queues))
        unit.done.append(row)

    def _note_without_topic(self, topics: Sequence[str]) -> None:
        """Messages are over that have no topic any more. Not before that is stored: what the log refuses is taken again
        and again, and a topic may be made anew meanwhile.
        """
        self.without_topic += len(topics)
        for topic in dict.fromkeys(topics):
            if topic not in self._topics_gone:
                self._topics_gone.add(topic)
                _logger.warning("event=timer_without_topic topic=%s consequence='not delivered'", topic)


def fitting(sizes: Sequence[int], limit: int) -> int:
    """How many of the first are within a limit together; one at the least."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > limit:
            return max(count, 1)
    return len(sizes)
