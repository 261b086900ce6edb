"""Leader job that delivers due messages. One unit holds copies in their real topics and the command that marks them
fired.

Only one of these units is in flight at a time. While sends wait for the log, these units get a quarter of its bytes.

A row is fired only if it is pending in the applied state and has no change in flight. This is checked in the turn that
stages the unit, because an earlier check may be outdated:

1. A row is found, and its record is being read from the disk.
2. A move of the same row is applied. The copy at the log's end has a row of its own.
3. If the row found first were fired now, the message would be delivered twice.
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
"""Interval in seconds between searches for due messages."""
IDLE_LOOK_S: Final = 0.1
"""Interval in seconds between searches while nothing is pending at all."""
BUSY_PAUSE_S: Final = 0.2
"""Pause in seconds after the log has refused a unit."""
REPAIR_S: Final = 30.0
"""Interval in seconds after which unreadable records are tried again. The log may have healed them."""
MAX_ROWS: Final = 1_000
"""Maximum number of rows that one search returns."""
MAX_UNIT_BYTES: Final = 256 << 10
"""Maximum size in bytes of the copies in a unit, in a large segment. A larger message gets its own unit."""
MAX_SEGMENT_SHARE: Final = 4
"""Minimum number of units that fit a segment; limits the size of a unit in a small segment."""
LOG_PART: Final = 4
"""Share of the log while sends wait for it: due messages get one byte in this many."""

_logger = logging.getLogger(__name__)


class TimerFirer:
    """Leader job that delivers due messages; implements `dledger_broker.kernel.jobs.Job`.

    `fired` counts messages that this node has delivered. `unreadable` counts messages that were set aside,
    `without_topic` messages whose topic was deleted.
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
        self._reported_topics: set[str] = set()
        self._handle: JobHandle | None = None
        self._due_ms: int | None = None
        """Due time in ms of the first row that is being delivered."""
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    def run(self, handle: JobHandle) -> None:
        """Begin to search for due rows."""
        self._reported_topics.clear()
        self._handle, self._due_ms = handle, None
        self._share.begin()
        self._retry_unreadable(handle)
        self._fetch_due(handle)

    @property
    def late_ms(self) -> int:
        """Return the time in ms since the messages being delivered were due; 0 if this node delivers none."""
        now_ms = self._now_ms()
        if self._due_ms is None or now_ms is None or self._handle is None or self._handle.is_stopped:
            return 0
        return max(0, now_ms - self._due_ms)

    def _retry_unreadable(self, handle: JobHandle) -> None:
        handle.call_later(REPAIR_S, partial(self._retry_unreadable, handle))
        self._index.restore_set_aside()

    def _fetch_due(self, handle: JobHandle) -> None:
        now_ms = self._now_ms()
        if not self._table.total.rows:
            self._due_ms = None  # reached if the log had no room for the last message, which was then recalled
            handle.call_later(IDLE_LOOK_S, partial(self._fetch_due, handle))
        elif now_ms is None or self._in_flight.fires:
            handle.call_later(LOOK_S, partial(self._fetch_due, handle))
        else:
            # Continue after the rows of the last call, with all that is due by now. The bound itself is excluded, hence
            # + 1.
            self._index.due(now_ms + 1, MAX_ROWS, handle.guarded(partial(self._read_due, handle)))

    def _read_due(self, handle: JobHandle, rows: Sequence[TimerRow]) -> None:
        """Read as many of these rows as fit a unit, and fire them. The other rows follow."""
        self._due_ms = rows[0][0] if rows else None
        if not rows:
            handle.call_later(LOOK_S, partial(self._fetch_due, handle))
            return
        if not self._share.is_open:
            handle.call_later(LOOK_S, partial(self._read_due, handle, rows))
            return
        limit = min(MAX_UNIT_BYTES, self._machine.log.segment_bytes // MAX_SEGMENT_SHARE)
        count = fitting([row[2] for row in rows], limit)
        batch, remaining = rows[:count], rows[count:]
        free_rows = [row for row in batch if self._is_free(row)]
        self._reads.read(free_rows, handle.guarded(partial(self._fire, handle, remaining)))

    def _is_free(self, row: TimerRow) -> bool:
        return row[1] not in self._in_flight and self._index.is_pending(row[1])

    def _fire(self, handle: JobHandle, remaining: Sequence[TimerRow], read: Sequence[Readable]) -> None:
        unit = FireUnit()
        for row, result in read:
            if not self._is_free(row):
                continue
            if result is None:
                self.unreadable += 1
                self._index.set_aside(row[1])
                self._machine.log.read_failed(row[1])
                _logger.warning("event=timer_unreadable position=%d consequence='tried again later'", row[1])
                continue
            self._add_copy(unit, row, *result)
        if unit.is_empty:
            self._read_due(handle, remaining)
            return
        positions, size = unit.positions, unit.size
        read_remaining = handle.guarded(partial(self._read_due, handle, remaining))

        def settled(outcome: UnitOutcome) -> None:
            self._in_flight.fired(positions)
            self._share.settled(size)
            if isinstance(outcome, Stored):
                self.fired += len(unit.copies)
                self._count_missing_topics(unit.topics_gone)
            read_remaining()

        try:
            handle.write(unit.copies, unit.commands, done=settled)
        except (BusyError, LogFullError):
            handle.call_later(BUSY_PAUSE_S, partial(self._fetch_due, handle))
            return
        self._in_flight.fire(positions)
        self._share.take(size, LOG_PART)

    def _add_copy(self, unit: FireUnit, row: TimerRow, record: MessageRecord, real: Real) -> None:
        """Add the copy of a message to a unit. If its topic is being deleted, it waits: the deletion may fail."""
        if self._machine.proposals.topic_deleting(real.topic):
            return
        topic = self._machine.topic(real.topic)
        if topic is None:
            unit.topics_gone.append(real.topic)
        else:
            # Choose a queue that consumers read: the topic may have fewer queues than when the message was sent.
            queues = max(1, topic.config.read_queue_nums)
            unit.copies.append(written_again(record, real.topic, real.queue_id % queues))
        unit.done.append(row)

    def _count_missing_topics(self, topics: Sequence[str]) -> None:
        """Count and log fired messages whose topic is gone.

        This is done only after the unit is stored. A refused unit is tried again and again, and the topic may be made
        anew meanwhile.
        """
        self.without_topic += len(topics)
        for topic in dict.fromkeys(topics):
            if topic not in self._reported_topics:
                self._reported_topics.add(topic)
                _logger.warning("event=timer_without_topic topic=%s consequence='not delivered'", topic)


def fitting(sizes: Sequence[int], limit: int) -> int:
    """Return how many of the first sizes fit a limit together; at least 1."""
    total = 0
    for count, size in enumerate(sizes):
        total += size
        if total > limit:
            return max(count, 1)
    return len(sizes)
