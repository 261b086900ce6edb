"""Ages of the log's segments: a segment is as old as its newest message.

The time of a message is in its record. It is therefore the same on every node, and does not change when a node is
replaced or its files are written anew. The last records of each term in a segment are read once, as soon as everything
before the segment is too old to be kept. The time is remembered while the segment exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dledger.environment import BACKGROUND
from dledger.errors import CorruptionError
from dledger.log import Log
from dledger.store.log import SegmentInfo
from dledger_broker.kernel.jobs import JobHandle
from dledger_remoting.record import scan_records

_logger = logging.getLogger(__name__)


class SegmentTimes(NamedTuple):
    """Store time of the newest message, None without messages, and time of the file's last write. Both are in ms since
    1970.
    """

    newest_ms: int | None
    written_ms: int


class Expired(NamedTuple):
    """End of the segments that are too old, 0 without any, and the segment whose time must be read to continue."""

    before: int
    unread: SegmentInfo | None


def newest_store_time(records: bytes) -> int:
    """Return the highest store time, ms, in a buffer that holds one or more records and nothing else."""
    return max(record.store_timestamp for record in scan_records(records))


def find_expired(
    segments: Sequence[SegmentInfo], times: Mapping[int, SegmentTimes], now_ms: int, max_age_ms: int
) -> Expired:
    """Return the end of the oldest segments whose newest message is older than `max_age_ms`.

    `times` is by segment start. A segment without messages is as old as its file. So is a segment with a time in the
    future, because a leader's clock was wrong then. If the file's time is in the future too, the segment expires with
    the next segment.
    """
    before = 0
    for segment in segments:
        known_times = times.get(segment.start_position)
        if known_times is None:
            return Expired(before, segment)
        newest_ms = known_times.newest_ms
        if newest_ms is None or newest_ms > now_ms:
            newest_ms = known_times.written_ms
        if newest_ms > now_ms:
            continue
        if now_ms - newest_ms <= max_age_ms:
            break
        before = segment.end_position
    return Expired(before, None)


class SegmentAges:
    """Memory of the times of segments that are closed and applied. These segments are never written again."""

    def __init__(self, log: Log, applied_position: Callable[[], int]) -> None:
        self._log = log
        self._applied_position = applied_position
        self._times: dict[int, SegmentTimes] = {}
        self._reading_run: JobHandle | None = None

    def newest_ms(self, start: int) -> int | None:
        """Return the store time of a segment's newest message, or its file's time for a segment without messages. None
        if not read yet.
        """
        times = self._times.get(start)
        if times is None:
            return None
        return times.written_ms if times.newest_ms is None else times.newest_ms

    def find_expired_later(
        self, handle: JobHandle, now_ms: int, max_age_ms: int, callback: Callable[[int], None]
    ) -> None:
        """Call `callback` with the end of the oldest segments whose newest message is older than `max_age_ms`, or 0.

        For the leader. The call happens at once, unless a segment must be read first. A segment that cannot be read
        counts as young. `callback` is not called if an earlier search still reads for a run that has not ended. It is
        not called either if the run of `handle` ends first.
        """
        if self._reading_run is not None and not self._reading_run.is_stopped:
            return
        applied = self._applied_position()
        closed = [segment for segment in self._log.segments()[:-1] if segment.end_position <= applied]
        closed_starts = {segment.start_position for segment in closed}
        self._times = {start: times for start, times in self._times.items() if start in closed_starts}
        before, unread = find_expired(closed, self._times, now_ms, max_age_ms)
        if unread is None:
            callback(before)
            return
        start, end = unread.start_position, unread.end_position

        def read() -> SegmentTimes:
            newest_ms = max(map(newest_store_time, self._log.last_records(start, end)), default=None)
            return SegmentTimes(newest_ms, self._log.segment_written_ms(start))

        def on_read(times: SegmentTimes | BaseException) -> None:
            self._reading_run = None
            if isinstance(times, BaseException):
                _logger.warning("event=segment_age_unknown position=%d error=%r", start, str(times))
                if isinstance(times, CorruptionError):
                    self._log.read_failed(end - 1)  # the newest record is there
                callback(before)
                return
            self._times[start] = times
            self.find_expired_later(handle, now_ms, max_age_ms, callback)

        self._reading_run = handle
        handle.run_blocking(BACKGROUND, read, on_read)
