"""Ages of the log's segments: as old as the newest message in them.

The time of a message is in its record, so it is the same on every node, and stays what it is when a node is replaced or
its files are written anew.  The last records of each term in a segment are read once, as soon as everything before the
segment is too old to be kept, and the time is remembered for as long as the segment is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dledger.environment import BACKGROUND
from dledger.log import Log
from dledger.store.log import SegmentInfo
from dledger_broker.kernel.jobs import JobHandle
from dledger_remoting.record import scan_records

_logger = logging.getLogger(__name__)


class SegmentTimes(NamedTuple):
    """Store time of the newest message, None without one, and when the file was written last; ms since 1970."""

    newest_ms: int | None
    written_ms: int


class Expired(NamedTuple):
    """Where the segments end that are too old (0: none is), and the one whose time must be read to know more."""

    before: int
    unread: SegmentInfo | None


def newest_store_time(records: bytes) -> int:
    """The highest store time, ms, in a buffer that holds one or more records and nothing else."""
    return max(record.store_timestamp for record in scan_records(records))


def find_expired(
    segments: Sequence[SegmentInfo], times: Mapping[int, SegmentTimes], now_ms: int, max_age_ms: int
) -> Expired:
    """The oldest segments, as far as their newest message is older than `max_age_ms`.

    `times` is by segment start.  A segment without messages, and one with a time in the future, which says that a
    leader's clock was wrong, is as old as its file; if that is from the future, too, it goes with the next one.
    """
    before = 0
    for segment in segments:
        found = times.get(segment.start_position)
        if found is None:
            return Expired(before, segment)
        newest_ms = found.newest_ms
        if newest_ms is None or newest_ms > now_ms:
            newest_ms = found.written_ms
        if newest_ms > now_ms:
            continue
        if now_ms - newest_ms <= max_age_ms:
            break
        before = segment.end_position
    return Expired(before, None)


class SegmentAges:
    """Reads and remembers the times of segments that are closed and applied: those are never written again."""

    def __init__(self, log: Log, applied_position: Callable[[], int]) -> None:
        self._log = log
        self._applied_position = applied_position
        self._times: dict[int, SegmentTimes] = {}
        self._reading_for: JobHandle | None = None

    def ask_expired(self, handle: JobHandle, now_ms: int, max_age_ms: int, tell: Callable[[int], None]) -> None:
        """Leader: `tell` where the oldest segments end whose newest message is older than `max_age_ms`; 0 if none is.

        At once, unless something has to be read; what cannot be read counts as young.  Nothing is told while an earlier
        question of a run that goes on is read for, nor if the run of `handle` has ended by then.
        """
        if self._reading_for is not None and not self._reading_for.is_stopped:
            return
        applied = self._applied_position()
        closed = [segment for segment in self._log.segments()[:-1] if segment.end_position <= applied]
        kept = {segment.start_position for segment in closed}
        self._times = {start: times for start, times in self._times.items() if start in kept}
        before, unread = find_expired(closed, self._times, now_ms, max_age_ms)
        if unread is None:
            tell(before)
            return
        start, end = unread.start_position, unread.end_position

        def read() -> SegmentTimes:
            newest_ms = max(map(newest_store_time, self._log.last_records(start, end)), default=None)
            return SegmentTimes(newest_ms, self._log.segment_written_ms(start))

        def on_read(times: SegmentTimes | BaseException) -> None:
            self._reading_for = None
            if isinstance(times, BaseException):
                _logger.warning("event=segment_age_unknown position=%d error=%r", start, str(times))
                tell(before)
                return
            self._times[start] = times
            self.ask_expired(handle, now_ms, max_age_ms, tell)

        self._reading_for = handle
        handle.run_blocking(BACKGROUND, read, on_read)
