"""The file of the time index follows the log, on a worker.

It takes what memory holds of applied commands, or reads the log where memory does not reach back to the file.  From
time to time it is compared with the counters of the replicated state, and built anew if they differ.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from dledger.environment import Environment, called_back, slept
from dledger.errors import LogError, TrimmedError
from dledger.supervision import supervise
from dledger_broker.views.logreader import AppliedLog, LogReader
from dledger_broker.views.rowscan import scan_changes
from dledger_broker.views.timefile import Stored, TimeFile, is_damage
from dledger_broker.views.timerows import LOWEST, Counts, Key, RowChanges, RowSource
from dledger_broker.views.timetail import TimeTail
from dledger_broker.views.writer import ViewWriter

BLOCK_BYTES: Final = 1 << 20
"""How much of the log is read at a time."""
WRITE_ROWS: Final = 20_000
"""So many rows go into one transaction: whoever asks for rows waits no longer than for one."""
SAVE_EVERY_BYTES: Final = 64 << 20
"""The file says that it has come further, though no row changed, once the log is so much longer."""
IDLE_POLL_S: Final = 0.25
RETRY_S: Final = 5.0
COMPARE_S: Final = 3600.0
"""How often the file is compared with the state's counters."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class Told(Protocol):
    """Who answers from file and memory."""

    def progressed(self) -> None:
        """The file has come further."""

    def void_answers(self) -> None:
        """What was handed out, or is being looked for, says nothing any more."""

    def floor_raised(self, position: int) -> None:
        """No row of a record below it counts any more."""


class TimeFollower:
    """Use from the event loop; `incarnation` of the data directory is set before `start`.

    `position` is up to where commands are in the file, or would be if there had been any; no row below `floor` counts.
    `whole` says whether the file agreed with the state when they were compared last, None before that.  With
    `always_compare` they are compared after every transaction.  `mismatches` counts comparisons that failed, `alarms`
    those that failed although the file had just been built anew.
    """

    def __init__(
        self,
        file: TimeFile,
        worker: ViewWriter,
        tail: TimeTail,
        env: Environment,
        reader: LogReader,
        replica: AppliedLog,
        source: RowSource,
        told: Told,
        *,
        always_compare: bool,
    ) -> None:
        self._file = file
        self._worker = worker
        self._tail = tail
        self._env = env
        self._reader = reader
        self._replica = replica
        self._source = source
        self._told = told
        self.always_compare = always_compare
        self.incarnation = ""
        self.whole: bool | None = None
        self.mismatches = self.alarms = self.restarts = 0
        self.position = self.floor = 0
        self.loaded = False
        self._saved_position = 0
        self._clean_behind: Key | None = None
        self._compare_at = 0.0
        self._rebuilt = self._started = self._last = False
        self._files = 0  # which file this is: what was asked of one before says nothing
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the log; the state is restored, and an event loop runs."""
        self._started = True
        run = supervise(
            self._run, "time index", self._count_restart, now=self._env.now, sleep=partial(slept, self._env)
        )
        self._task = asyncio.get_running_loop().create_task(run)

    async def stop(self) -> None:
        """Follow no more; may be started again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def close(self) -> None:
        """Write what is known, with the state's counters, and answer nothing any more."""
        await self.stop()
        self._last = True
        if self.loaded:
            with suppress(LogError, OSError, sqlite3.Error):
                while self.position >= self._tail.begin and await self.fold():
                    pass
        await self._work(self._file.close)

    def abandon(self) -> None:
        """Do nothing more: what is not written comes again."""
        if self._task is not None:
            self._task.cancel()
        self._worker.abandon()

    def restored(self) -> None:
        """The state is another one: before `start` the file is kept, afterwards it is wiped."""
        if self._started:
            self._begin_anew()

    @property
    def reached(self) -> bool:
        """Whether file and memory are as of the applied position."""
        return self.loaded and self._tail.begin <= self.position <= self._replica.applied_position

    def raise_floor(self, position: int) -> None:
        """No row of a record below it counts any more."""
        if position > self.floor:
            self.floor = position
            self._told.floor_raised(position)

    def clean(self) -> None:
        """Rows below the floor are still in the file: remove them, slice by slice."""
        self._clean_behind = LOWEST

    async def load(self) -> None:
        """Open the file, once."""
        while not self.loaded:
            file = self._files
            stored = await self._work(partial(self._file.load, self.incarnation))
            if file == self._files:
                self._take(stored)
                if stored.counts is not None and await self._differs(stored.counts):
                    self._rebuild()

    async def fold(self) -> bool:
        """Bring the file up to what is applied and durable now, or a step nearer; False if nothing was done."""
        await self.load()
        file, target = self._files, self._replica.applied_position
        durable = min(target, self._replica.log.durable_position)
        due = self._last or self._env.now() >= self._compare_at
        counts = self._source.pending() if due or (self.always_compare and target > self.position) else None
        self.raise_floor(self._lowest_segment(target))
        if self.position >= self._tail.begin:
            changes, complete = self._tail.first(durable, WRITE_ROWS)
            position = target if complete and durable == target else max((c.end for c in changes), default=0)
        else:
            changes, position = await self._read_log(durable)
        if file != self._files:
            return True
        if position != target:
            counts = None
        if position <= self.position and not (due and counts is not None and self._is_news(position)):
            return await self._tidy()
        if changes or counts is not None or position - self._saved_position >= SAVE_EVERY_BYTES:
            await self._work(partial(self._file.write, changes, position, self.floor, counts))
            if file != self._files:
                return True
            self._saved_position = position
        self.position = position
        self._tail.drop(position)
        self._told.progressed()
        if counts is not None and not self._last:
            await self._compare(counts)
        return True

    def failed(self, error: BaseException) -> None:
        """A worker could not read or write the file: it is opened again, or built anew if it is damaged."""
        _logger.warning("event=time_index_stands position=%d error=%r", self.position, str(error))
        if is_damage(error):
            self._rebuild()
        else:
            self.loaded = False

    async def _run(self) -> None:
        while True:
            try:
                if not await self.fold():
                    self._told.progressed()
                    await slept(self._env, IDLE_POLL_S)
            except TrimmedError:
                continue
            except (LogError, OSError, sqlite3.Error) as error:
                self.failed(error)
                await slept(self._env, RETRY_S)

    async def _read_log(self, end: int) -> tuple[list[RowChanges], int]:
        """Commands of the next piece of the log, and where it ends: at or below `end`."""
        start = max(self.position, self.floor)
        if start > self.position:
            self.clean()  # that rows below the floor are gone is not read
        if start >= end:
            return [], start if start == end else self.position
        position, data = await self._reader.block(start, BLOCK_BYTES)
        changes, after = await self._work(partial(scan_changes, data, position, end, self._source))
        return changes, after

    def _lowest_segment(self, target: int) -> int:
        """Where the lowest segment begins that has pending rows, or the kept log."""
        lowest = self._source.lowest()
        if lowest is None:
            return target
        starts = (segment.start_position for segment in self._replica.log.segments())
        return max((start for start in starts if start <= lowest), default=self._replica.log.first_position)

    async def _tidy(self) -> bool:
        behind, self._clean_behind = self._clean_behind, None
        if behind is None:
            return False
        self._clean_behind = await self._work(partial(self._file.clean, self.floor, behind)) or self._clean_behind
        return True

    def _is_news(self, position: int) -> bool:
        """Whether a comparison, or a last transaction, at the file's own position says what none said before."""
        return position == self.position and (not self._last or position != self._saved_position)

    async def _compare(self, counts: Counts) -> None:
        """Compare the file with what the state has pending at the same log position."""
        differs = await self._differs(counts)
        if differs is None:
            return
        self._compare_at = self._env.now() + COMPARE_S
        self.whole = not differs and min(counts, default=self.floor) > self.floor - self._source.stretch_bytes
        if not differs:
            self._rebuilt = False
        elif not self._rebuilt:
            self._rebuild()
        else:
            self._rebuilt = False
            self.alarms += 1
            _logger.error("event=time_index_differs position=%d consequence='messages may be late'", self.position)

    async def _differs(self, counts: Counts) -> bool | None:
        """Whether rows that count are others than these; None if the file was thrown away meanwhile.

        Those of records that the log no longer holds cannot be read again, and are left out.
        """
        file, found = self._files, dict[int, tuple[int, int]]()
        behind: Key | None = LOWEST
        while behind is not None:
            behind = await self._work(partial(self._file.count, self._source.stretch_bytes, behind, found))
            if file != self._files:
                return None
        first = max(self.floor - self.floor % self._source.stretch_bytes, self._replica.log.first_position)
        if min(found, default=first) < first:
            self.clean()
        differs = _from(found, first) != _from(counts, first)
        self.mismatches += differs
        return differs

    def _rebuild(self) -> None:
        _logger.warning("event=time_index_rebuilt position=%d", self.position)
        self._rebuilt, self._compare_at = True, 0.0
        self._told.void_answers()
        self._begin_anew()

    def _take(self, stored: Stored) -> None:
        self.position = self._saved_position = stored.position
        self.floor = max(self.floor, stored.floor)
        self._tail.drop(stored.position)
        self.loaded = True
        self._told.progressed()

    def _begin_anew(self) -> None:
        self._files += 1
        self.position = self._saved_position = 0
        self.whole = None
        self._worker.submit(self._file.wipe, self._wiped)

    def _wiped(self, result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            self.loaded = False
            _logger.warning("event=time_index_stands position=0 error=%r", str(result))

    def _count_restart(self) -> None:
        self.restarts += 1

    async def _work(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self._worker.submit(work, done))


def _from(counts: Counts, position: int) -> Counts:
    return {start: count for start, count in counts.items() if start >= position}
