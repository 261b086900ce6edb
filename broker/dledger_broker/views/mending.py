"""Mender of consume queues: searches for damaged queues, and writes them anew from the log while the node runs.

Files of queues rot, get lost or cannot be read, as all files may. A read that meets damage reports it to
`ConsumeQueues`. A scrub reads everything back from time to time. Damaged files are written anew from the committed log.
The log is read once for all damaged queues, from the segment on in which the first missing record may lie. A queue
whose records or files cannot be read or written stays damaged, and the others are mended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from dledger.environment import BACKGROUND, Environment, called_back, slept
from dledger.errors import BusyError, CorruptionError, LogError, TrimmedError
from dledger_base.supervision import supervise
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.keyindex import iter_block
from dledger_broker.views.logreader import AppliedLog, LogReader
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.scan import TopicRun, scan_runs
from dledger_broker.views.unitfiles import BadUnits, UnitBatch, queue_directory
from dledger_broker.views.units import UNIT_BYTES
from dledger_remoting.errors import RecordError

BLOCK_BYTES: Final = 1 << 20
"""Size in bytes of the pieces in which the log is read."""
MAX_FOUND_BYTES: Final = 8 << 20
"""Maximum size in bytes of units that wait to be written together."""
SHARE: Final = 0.5
"""Maximum share of the time for reading the log, while readers of the queues wait."""
RETRY_S: Final = 5.0
"""Minimum interval in seconds between two attempts to mend a queue. It doubles with each failure."""
MAX_RETRY_S: Final = 60.0
"""Maximum interval in seconds between two attempts. Each may read the whole log."""
FIRST_SCRUB_S: Final = 60.0
SCRUB_S: Final = 3600.0
"""Interval in seconds between two rounds of the scrub."""
SCRUB_UNITS: Final = 50_000
"""Number of units that the scrub reads at a time: 1 MB."""
SCRUB_PAUSE_S: Final = 0.1
"""Interval in seconds between two reads of the scrub: at most 10 MB/s."""
SCRUB_MIN_SHARE: Final = 0.05
"""Share of the pause that follows the shortest read of the scrub."""

_logger = logging.getLogger(__name__)


class _Gap:
    """Missing units of a view, from `next` to `end`. The units before `next` are `collected`, or written."""

    __slots__ = ("collected", "end", "error", "next", "view")

    def __init__(self, view: QueueView, start: int, end: int) -> None:
        self.view = view
        self.next = start
        self.end = end
        self.collected = bytearray()
        self.error: Exception | None = None
        """The reason why these units cannot be written now."""

    @property
    def is_obsolete(self) -> bool:
        """True if nobody needs the units any more."""
        return self.view.dropped or not self.view.damaged

    @property
    def is_closed(self) -> bool:
        """True if no unit is missing any more, or if the missing units cannot be written now."""
        return self.error is not None or self.is_obsolete or max(self.next, self.view.start) >= self.end

    def fail(self, error: Exception | None = None) -> None:
        """Give the units up for now, by default because the log lacks the next one."""
        name = f"{self.view.topic}/{self.view.queue_id}"
        self.error = error or CorruptionError(f"the log has no record of {name} at offset {self.next}")
        self.collected.clear()

    def take(self, end_offset: int, units: bytes) -> None:
        """Take the next missing units from a run of the log, or fail if the log lacks the units before them."""
        view, first = self.view, end_offset - len(units) // UNIT_BYTES
        if self.is_closed or int.from_bytes(units[:8], "big") < view.created_position or end_offset <= self.next:
            return
        if not self.collected:
            self.next = max(self.next, view.start)
        if first > self.next:
            self.fail()
            return
        end = min(self.end, end_offset)
        if end > self.next:
            self.collected += units[(self.next - first) * UNIT_BYTES : (end - first) * UNIT_BYTES]
            self.next = end

    def drain_units(self) -> UnitBatch:
        """Return the units to write now, and forget them."""
        view, units = self.view, bytes(self.collected)
        self.collected.clear()
        start = self.next - len(units) // UNIT_BYTES
        return UnitBatch(queue_directory(view.topic, view.queue_id), start, units, view.seed)


class QueueMender:
    """Mender and scrubber of the queues, on the event loop. `views` returns the present views."""

    def __init__(
        self,
        env: Environment,
        queues: ConsumeQueues,
        reader: LogReader,
        replica: AppliedLog,
        views: Callable[[], Iterable[QueueView]],
    ) -> None:
        self._env = env
        self._queues = queues
        self._reader = reader
        self._replica = replica
        self._views = views
        self._tasks: list[asyncio.Task[None]] = []
        self._mend_needed = asyncio.Event()
        self.mended = 0
        """Number of queues that were mended since the start."""
        self.restarts = 0
        queues.on_damage = self._mend_needed.set

    @property
    def is_whole(self) -> bool:
        """True while no queue is marked as damaged."""
        return not self._queues.damaged

    def start(self) -> None:
        """Begin to mend and to scrub. Needs a running event loop."""
        loop = asyncio.get_running_loop()
        for run, name in ((self._mend_when_needed, "queue mender"), (self._scrub, "queue scrub")):
            supervised = supervise(run, name, self._count_restart, now=self._env.now, sleep=partial(slept, self._env))
            self._tasks.append(loop.create_task(supervised))

    def abandon(self) -> None:
        """Begin nothing more."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Stop. Damaged queues stay damaged, and are found again."""
        self.abandon()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def mend(self) -> None:
        """Write the damaged files of all damaged views anew.

        Raises `LogError`, `RecordError` or `OSError` if some views are still damaged.
        """
        views = list(self._queues.damaged)
        gaps: list[_Gap] = []
        failures: dict[QueueView, Exception] = {}
        begin: int | None = None
        for view in views:
            try:
                bad: BadUnits = await called_back(partial(self._queues.begin_mending, view))
            except OSError as error:
                failures[view] = error
                continue
            gaps += (_Gap(view, start, end) for start, end in bad.ranges)
            if bad.ranges:
                begin = bad.behind if begin is None else min(begin, bad.behind)
        if begin is not None:
            await self._fill(gaps, begin)
        failures |= {gap.view: gap.error for gap in gaps if gap.error is not None}
        for view in views:
            if view.damaged and not view.dropped:
                if view in failures:
                    continue
                self._queues.mended(view)
                self.mended += 1
                _logger.warning("event=queue_mended topic=%s queue_id=%d", view.topic, view.queue_id)
            else:
                self._queues.forget_damage(view)
                failures.pop(view, None)
        for failure in failures.values():
            raise failure

    async def _mend_when_needed(self) -> None:
        pause_s = RETRY_S
        while True:
            if self.is_whole:  # otherwise an exception ended the last run
                await self._mend_needed.wait()
            self._mend_needed.clear()
            try:
                await self.mend()
            except (LogError, OSError, RecordError) as error:
                _logger.warning("event=queues_not_mended queues=%d error=%r", len(self._queues.damaged), str(error))
                await self._more_is_damaged(pause_s)
                pause_s = min(2 * pause_s, MAX_RETRY_S)
            else:
                pause_s = RETRY_S

    async def _more_is_damaged(self, timeout_s: float) -> None:
        """Wait until another queue is damaged, or for `timeout_s`."""
        timer = self._env.call_later(timeout_s, self._mend_needed.set)
        try:
            await self._mend_needed.wait()
        finally:
            timer.cancel()

    async def _fill(self, gaps: list[_Gap], behind: int) -> None:
        """Write the missing units, from the log. Gaps with records that cannot be read fail."""
        position = self._segment_start(behind)
        by_queue: dict[tuple[bytes, int], list[_Gap]] = {}
        for gap in gaps:
            by_queue.setdefault((gap.view.topic.encode(), gap.view.queue_id), []).append(gap)
        while gaps := [gap for gap in gaps if not gap.is_closed]:
            started = self._env.now()
            if position >= self._replica.applied_position:
                for gap in gaps:
                    gap.fail()
                break
            try:
                at, data = await self._reader.block(position, BLOCK_BYTES)
                runs, position = await self._scanned(data, at)
            except TrimmedError:
                position = max(position, self._replica.log.first_position)
                continue
            except (CorruptionError, RecordError) as error:
                _logger.warning("event=log_not_read position=%d error=%r", position, str(error))
                position = self._next_segment_start(position)  # gaps with records up to there will fail
                continue
            for topic, queue_id, end_offset, units in runs:
                for gap in by_queue.get((topic, queue_id), ()):
                    gap.take(end_offset, units)
            full = sum(len(gap.collected) for gap in gaps) >= MAX_FOUND_BYTES
            await self._write([gap for gap in gaps if not gap.is_obsolete and (full or gap.is_closed)])
            await slept(self._env, (self._env.now() - started) * (1 / SHARE - 1))

    async def _scanned(self, data: bytes, position: int) -> tuple[list[TopicRun], int]:
        """Return the result of `_scan`, on a worker. If the log has rotted there, have it repaired.

        The log may be what is wrong where a record contradicts a queue. Without the repair the queue would stay damaged
        until the scrub of the log comes to that place.
        """
        scan = partial(_scan, data, position)
        try:
            scanned: tuple[list[TopicRun], int] = await called_back(partial(self._env.run_blocking, BACKGROUND, scan))
        except (CorruptionError, RecordError):
            self._replica.log.read_failed(position)
            raise
        return scanned

    def _segment_start(self, position: int) -> int:
        """Return a position where an entry begins and before which no record at or above `position` lies."""
        starts = [segment.start_position for segment in self._replica.log.segments()]
        return max((start for start in starts if start <= position), default=self._replica.log.first_position)

    def _next_segment_start(self, position: int) -> int:
        """Return where the segment behind a position begins, or the applied end of the log."""
        later = (one.start_position for one in self._replica.log.segments() if one.start_position > position)
        return min(later, default=self._replica.applied_position)

    async def _write(self, gaps: Iterable[_Gap]) -> None:
        """Write the found units of some gaps. A disk can replace sectors that it cannot read.

        All are written in one job. If that fails, each gap's are written alone.
        """
        batches = {gap: gap.drain_units() for gap in gaps if gap.collected}
        if not batches:
            return
        try:
            await called_back(partial(self._queues.write_again, list(batches.values())))
        except OSError:
            for gap, batch in batches.items():
                if not gap.is_obsolete:  # else the files may belong to a newer queue
                    await self._write_alone(gap, batch)

    async def _write_alone(self, gap: _Gap, batch: UnitBatch) -> None:
        try:
            await called_back(partial(self._queues.write_again, [batch]))
        except OSError as error:
            gap.fail(error)

    async def _scrub(self) -> None:
        """Read all written units back, again and again, slowly."""
        await slept(self._env, FIRST_SCRUB_S)
        while True:
            for view in list(self._views()):
                await self._scrub_view(view)
            await slept(self._env, SCRUB_S)

    async def _scrub_view(self, view: QueueView) -> None:
        offset = view.start
        while offset < view.written and not view.dropped and not view.damaged:
            offset = max(offset, view.start)
            count = min(SCRUB_UNITS, view.written - offset)
            try:
                await called_back(partial(self._queues.verify, view, offset, count))
            except CorruptionError as error:
                self._queues.found_damage(view, offset, error)
            except (BusyError, OSError) as error:
                _logger.warning(
                    "event=queue_not_scrubbed topic=%s queue_id=%d error=%r", view.topic, view.queue_id, str(error)
                )
            offset += count
            await slept(self._env, SCRUB_PAUSE_S * min(1.0, count / SCRUB_UNITS + SCRUB_MIN_SHARE))

    def _count_restart(self) -> None:
        self.restarts += 1


def _scan(data: bytes, position: int) -> tuple[list[TopicRun], int]:
    """Return the records of a piece of the log by queue, and the position behind its last sound entry. For a worker.

    Raises `CorruptionError` or `RecordError` if the first entry is not sound.
    """
    runs: list[TopicRun] = []
    after = position
    try:
        for start, end, behind in iter_block(data, position):
            if start != end:
                runs += scan_runs(memoryview(data)[start:end], position + start)
            after = behind
    except (CorruptionError, RecordError):
        if after == position:
            raise
    if after == position:
        raise CorruptionError(f"no entry at position {position} of the log")
    return runs, after
