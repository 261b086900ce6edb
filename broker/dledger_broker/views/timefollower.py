"""Follower of the log for the time index: brings the index's file up to date, on a worker.

It takes the applied commands in memory, or reads the log where memory does not reach back to the file. From time to
time the file is compared with the counters of the replicated state, and built anew if they differ.
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
from dledger.errors import CorruptionError, LogError, TrimmedError
from dledger.format import blank_length, iter_commands, parse_entry
from dledger.types import EntryKind
from dledger_base.supervision import supervise
from dledger_broker.views.logreader import AppliedLog, LogReader
from dledger_broker.views.timefile import Stored, TimeFile, is_damage
from dledger_broker.views.timerows import LOWEST, Counts, Key, RowChanges, RowSource
from dledger_broker.views.timetail import TimeTail
from dledger_broker.views.writer import ViewWriter


def scan_changes(data: bytes, position: int, limit: int, source: RowSource) -> tuple[list[RowChanges], int]:
    """Return the row changes of the whole entries in a piece of the log, and the position behind the last of them.

    The piece starts with an entry. Only entries that end at or below `limit` are read. Raises `CorruptionError` if the
    bytes are not entries, or the first entry is not whole.
    """
    changes: list[RowChanges] = []
    offset, end = 0, len(data)
    while offset < end:
        blank = blank_length(data, offset, end)
        if blank is not None:
            return changes, position + offset + blank
        entry = parse_entry(data, offset, end, None)
        if entry is None:
            break
        after = position + offset + entry.size
        if after > limit:
            return changes, position + offset
        if entry.kind == EntryKind.GROUP and entry.channel:
            section = memoryview(data)[offset + entry.size - entry.channel : offset + entry.size]
            for kind, payload in iter_commands(section):
                change = source.decode(kind, payload)
                if change is not None:
                    changes.append(change._replace(end=after))
        offset += entry.size
    if not offset:
        raise CorruptionError(f"no entry at position {position} of the log")
    return changes, position + offset


BLOCK_BYTES: Final = 1 << 20
"""Size in bytes of the piece of the log that is read at a time."""
WRITE_ROWS: Final = 20_000
"""Number of rows that go into one transaction. A query for rows waits for at most one transaction."""
SAVE_EVERY_BYTES: Final = 64 << 20
"""Size in bytes of new log after which the file's position is saved, though no row changed."""
IDLE_POLL_S: Final = 0.25
RETRY_S: Final = 5.0
DOUBT_S: Final = 60.0
"""Minimum interval in seconds between two requested comparisons."""
COMPARE_S: Final = 3600.0
"""Interval in seconds at which the file is compared with the state's counters."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class FollowerListener(Protocol):
    """The index, which answers from file and memory."""

    def on_progress(self) -> None:
        """Note that the file has caught up with a further part of the log."""

    def discard_answers(self) -> None:
        """Forget rows that were handed out and queries under way: their results are not valid any more."""

    def on_floor_raised(self, position: int) -> None:
        """Note that rows of records below a position do not count any more."""


class TimeFollower:
    """Follower that keeps the file up to date, on the event loop. `incarnation` is set before `start`.

    - `position`: log position up to which all commands about rows are in the file. The position in the file itself may
      be lower, if no command about rows followed it.
    - `floor`: rows of records below it do not count.
    - `whole`: whether the file agreed with the state at the last comparison, None before that.
    - `always_compare`: compare after every transaction.
    - `mismatches`: number of comparisons that failed.
    - `alarms`: number of comparisons that failed although the file had just been built anew.
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
        listener: FollowerListener,
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
        self._listener = listener
        self.always_compare = always_compare
        self.incarnation = ""
        self.whole: bool | None = None
        self.mismatches = self.alarms = self.restarts = 0
        self.position = self.floor = 0
        self.loaded = False
        self._saved_position = 0
        self._clean_after: Key | None = None
        self._next_comparison_s = 0.0
        self._compared_at_s = -DOUBT_S
        self._is_rebuilt = self._is_started = self._is_closing = False
        self._file_number = 0  # number of this file, so that answers of an earlier file are ignored
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the log. The state is restored, and an event loop runs."""
        self._is_started = True
        run = supervise(
            self._run, "time index", self._count_restart, now=self._env.now, sleep=partial(slept, self._env)
        )
        self._task = asyncio.get_running_loop().create_task(run)

    async def stop(self) -> None:
        """Stop following the log. It may be started again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def close(self) -> None:
        """Write the collected changes of rows, with the state's counters, and answer no further queries."""
        await self.stop()
        self._is_closing = True
        if self.loaded:
            with suppress(LogError, OSError, sqlite3.Error):
                while self.position >= self._tail.begin and await self.fold():
                    pass
        await self._run_on_worker(self._file.close)

    def abandon(self) -> None:
        """Stop all work. Changes that are not written are read from the log again."""
        if self._task is not None:
            self._task.cancel()
        self._worker.abandon()

    def restored(self) -> None:
        """Note that the state was replaced. Before `start` the file is kept, afterwards it is wiped."""
        if self._is_started:
            self._restart_file()

    @property
    def reached(self) -> bool:
        """True if file and memory are as of the applied position."""
        return self.loaded and self._tail.begin <= self.position <= self._replica.applied_position

    def raise_floor(self, position: int) -> None:
        """Raise the floor: rows of records below a position do not count any more."""
        if position > self.floor:
            self.floor = position
            self._listener.on_floor_raised(position)

    def clean(self) -> None:
        """Remove the rows below the floor from the file, slice by slice."""
        self._clean_after = LOWEST

    async def load(self) -> None:
        """Open the file, once."""
        while not self.loaded:
            file = self._file_number
            stored = await self._run_on_worker(partial(self._file.load, self.incarnation))
            if file == self._file_number:
                self._use_stored(stored)
                if stored.counts is not None and await self._counts_differ(stored.counts):
                    self._rebuild()

    async def fold(self) -> bool:
        """Bring the file up to the applied and durable position, or a step nearer. Return False if nothing was done."""
        await self.load()
        file, target = self._file_number, self._replica.applied_position
        durable = min(target, self._replica.log.durable_position)
        due = self._is_closing or self._env.now() >= self._next_comparison_s
        counts = self._source.pending() if due or (self.always_compare and target > self.position) else None
        self.raise_floor(self._lowest_segment(target))
        if self.position >= self._tail.begin:
            changes, complete = self._tail.first(durable, WRITE_ROWS)
            position = target if complete and durable == target else max((c.end for c in changes), default=0)
        else:
            changes, position = await self._read_log(durable)
        if file != self._file_number:
            return True
        if position != target:
            counts = None
        if position <= self.position and not (due and counts is not None and self._has_new_state(position)):
            return await self._clean_slice()
        if changes or counts is not None or position - self._saved_position >= SAVE_EVERY_BYTES:
            await self._run_on_worker(partial(self._file.write, changes, position, self.floor, counts))
            if file != self._file_number:
                return True
            self._saved_position = position
        self.position = position
        self._tail.drop(position)
        self._listener.on_progress()
        if counts is not None and not self._is_closing:
            await self._compare(counts)
        return True

    def doubt(self) -> None:
        """Compare the file with the state soon, because the index has not found rows that the state says are
        pending.
        """
        self._next_comparison_s = min(self._next_comparison_s, max(self._env.now(), self._compared_at_s + DOUBT_S))

    def failed(self, error: BaseException) -> None:
        """Handle an error of a worker: open the file again, or build it anew if it is damaged."""
        _logger.warning("event=time_index_stands position=%d error=%r", self.position, str(error))
        if is_damage(error):
            self._rebuild()
        else:
            self.loaded = False

    async def _run(self) -> None:
        while True:
            try:
                if not await self.fold():
                    self._listener.on_progress()
                    await slept(self._env, IDLE_POLL_S)
            except TrimmedError:
                continue
            except (LogError, OSError, sqlite3.Error) as error:
                self.failed(error)
                await slept(self._env, RETRY_S)

    async def _read_log(self, end: int) -> tuple[list[RowChanges], int]:
        """Return the commands of the next piece of the log, and its end, which is at most `end`."""
        start = max(self.position, self.floor)
        if start > self.position:
            self.clean()  # the commands that remove rows below the floor are not read
        if start >= end:
            return [], start if start == end else self.position
        position, data = await self._reader.block(start, BLOCK_BYTES)
        changes, after = await self._run_on_worker(partial(scan_changes, data, position, end, self._source))
        return changes, after

    def _lowest_segment(self, target: int) -> int:
        """Return the beginning of the lowest segment with pending rows, or of the kept log."""
        lowest = self._source.lowest()
        if lowest is None:
            return target
        starts = (segment.start_position for segment in self._replica.log.segments())
        return max((start for start in starts if start <= lowest), default=self._replica.log.first_position)

    async def _clean_slice(self) -> bool:
        after, self._clean_after = self._clean_after, None
        if after is None:
            return False
        self._clean_after = await self._run_on_worker(partial(self._file.clean, self.floor, after)) or self._clean_after
        return True

    def _has_new_state(self, position: int) -> bool:
        """Return whether a comparison, or a last transaction, at the file's own position brings something new."""
        return position == self.position and (not self._is_closing or position != self._saved_position)

    async def _compare(self, counts: Counts) -> None:
        """Compare the file with the pending rows of the state at the same log position."""
        differs = await self._counts_differ(counts)
        if differs is None:
            return
        self._compared_at_s = self._env.now()
        self._next_comparison_s = self._compared_at_s + COMPARE_S
        self.whole = not differs and min(counts, default=self.floor) > self.floor - self._source.stretch_bytes
        if not differs:
            self._is_rebuilt = False
        elif not self._is_rebuilt:
            self._rebuild()
        else:
            self._is_rebuilt = False
            self.alarms += 1
            _logger.error("event=time_index_differs position=%d consequence='messages may be late'", self.position)

    async def _counts_differ(self, counts: Counts) -> bool | None:
        """Return whether the rows that count differ from `counts`, or cannot be read. None if the file was replaced
        meanwhile.

        Rows of records that the log no longer holds are left out, because they cannot be read again.
        """
        file, file_counts = self._file_number, dict[int, tuple[int, int]]()
        after: Key | None = LOWEST
        while after is not None:
            try:
                after = await self._run_on_worker(
                    partial(self._file.count, self._source.stretch_bytes, after, file_counts)
                )
            except sqlite3.Error as error:
                if file != self._file_number:
                    return None
                if self._is_rebuilt or not is_damage(error):
                    raise  # the new file is damaged as well, so no row was derived wrongly: build it anew after a pause
                _logger.warning("event=time_index_damaged position=%d error=%r", self.position, str(error))
                return True
            if file != self._file_number:
                return None
        first = max(self.floor - self.floor % self._source.stretch_bytes, self._replica.log.first_position)
        if min(file_counts, default=first) < first:
            self.clean()
        differs = _from(file_counts, first) != _from(counts, first)
        self.mismatches += differs
        return differs

    def _rebuild(self) -> None:
        _logger.warning("event=time_index_rebuilt position=%d", self.position)
        self._is_rebuilt, self._next_comparison_s = True, 0.0
        self._listener.discard_answers()
        self._restart_file()

    def _use_stored(self, stored: Stored) -> None:
        self.position = self._saved_position = stored.position
        self.floor = max(self.floor, stored.floor)
        self._tail.drop(stored.position)
        self.loaded = True
        self._listener.on_progress()

    def _restart_file(self) -> None:
        self._file_number += 1
        self.position = self._saved_position = 0
        self.whole = None
        self._worker.submit(self._file.wipe, self._on_wiped)

    def _on_wiped(self, result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            self.loaded = False
            _logger.warning("event=time_index_stands position=0 error=%r", str(result))

    def _count_restart(self) -> None:
        self.restarts += 1

    async def _run_on_worker(self, work: Callable[[], T]) -> T:
        return await called_back(lambda done: self._worker.submit(work, done))


def _from(counts: Counts, position: int) -> Counts:
    return {start: count for start, count in counts.items() if start >= position}
