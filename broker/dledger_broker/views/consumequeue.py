"""All consume queues of a broker: appended in memory, written in batches, read from memory or files.

Appended units can be read at once. Every `flush_ms` the view writer writes a batch to the files, with at most one write
for each queue. A batch takes the queues that have waited longest, at most `MAX_QUEUES_PER_BATCH`. So thousands of busy
queues cost as little as a few hundred. The units of the other queues, 20 bytes each, wait in memory. A failed write is
tried again with the next batch. It only prevents the checkpoint. A view is `damaged` if one of its files is missing,
unreadable or not what was written. It is not read from files until `QueueMender` has written them anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dledger.environment import Environment
from dledger.errors import CorruptionError
from dledger.store.disk import Disk
from dledger_base.invariants import invariant
from dledger_broker.views.checkpoint import remove_checkpoint
from dledger_broker.views.logreader import PLACE_BYTES, OtherRecordError, RecordPlace, UnreadableRecordError
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.unitfiles import (
    DIRECTORY,
    BadUnits,
    FileLayout,
    QueueFileWriter,
    UnitBatch,
    queue_directory,
    topic_directory,
)
from dledger_broker.views.unitreader import QueueFileReader, UnitPlace, close_all, read_units
from dledger_broker.views.units import READ_UNIT, UNIT_BYTES, UnitFields, first_where
from dledger_broker.views.writer import ViewWriter

MAX_RESIDENT_UNITS = 262_144
"""Maximum number of written units that all queues together keep in memory for consumers at the end of the log: 5 MB."""
MAX_RESIDENT_UNITS_PER_QUEUE = 1_024
MAX_QUEUES_PER_BATCH = 256
MEND_WAIT_S = 3.0
"""Time limit in seconds for a read that waits until its queue is mended."""
SYNC_BATCH_FILES = 8
SYNC_PAUSE_S = 0.05
"""Pause in seconds of a checkpoint after `SYNC_BATCH_FILES` synced files. It leaves the disk to the log."""

_logger = logging.getLogger(__name__)


class DamagedViewError(CorruptionError):
    """Damage in a queue's files: they are not what was written, or the log contradicts them (`contradicted`).

    `offset` is an offset that the queue held when the damage was found.
    """

    def __init__(self, view: QueueView, offset: int, reason: str, *, contradicted: bool) -> None:
        self.view = view
        self.offset = offset
        self.contradicted = contradicted
        super().__init__(reason)


class ConsumeQueues:
    """All consume queues. Appends go to a `QueueView`. This class moves them to files, reads them back, and removes
    them.
    """

    def __init__(self, disk: Disk, env: Environment, writer: ViewWriter, layout: FileLayout, flush_ms: int) -> None:
        self._disk = disk
        self._env = env
        self._writer = writer
        self.layout = layout
        self._flush_s = flush_ms / 1000
        self._reader = QueueFileReader(disk, env, layout)
        self._files = QueueFileWriter(disk, layout)
        self._dirty: list[QueueView] = []
        self._resident: list[QueueView] = []
        self._timer_armed = False
        self._flushing = 0
        self._failed_writes = 0
        self._has_complained = False
        self._sync_failed = ""
        self._is_halted = False
        self._unsynced_count = 0
        self.is_urgent = False
        self.damaged: dict[QueueView, bool] = {}
        """Views whose files are to be mended, in the order in which the damage was found.

        The value is True if the log contradicts the files.
        """
        self.on_damage: Callable[[], None] = lambda: None
        self._waiting: list[asyncio.Future[None]] = []
        """Reads that wait until a queue is mended."""

    @property
    def backlog(self) -> str:
        """Description of what is not on the disk yet, for the report of a stop that takes long. Empty if all is."""
        batches = self._flushing + -(-len(self._dirty) // MAX_QUEUES_PER_BATCH)
        if batches:
            return f"the files of about {batches * MAX_QUEUES_PER_BATCH} consume queues are to be written"
        return f"{self._unsynced_count} files of consume queues are to be synced" if self._unsynced_count else ""

    def appended(self, views: Iterable[QueueView]) -> None:
        """Note that units were appended to these views."""
        for view in views:
            if not view.dirty:
                view.dirty = True
                self._dirty.append(view)
        if not self._timer_armed:
            self._arm()

    def read(self, view: QueueView, offset: int, count: int) -> bytes | None:
        """Return up to `count` units from `offset` on, at least one. None if that needs the disk (`read_later`).

        The view must hold `offset`. Raises `CorruptionError` if the view is or proves to be damaged.
        """
        if offset >= view.tail_start:
            return view.in_memory(offset, count)
        if view.dropped:
            return None  # see `read_later`
        if view.damaged:
            raise _mending_error(view)
        count = min(count, view.tail_start - offset)
        try:
            return self._reader.read_nowait(queue_directory(view.topic, view.queue_id), view.seed, offset, count)
        except CorruptionError as error:
            self.found_damage(view, offset, error)
            raise

    def place(self, view: QueueView, offset: int, count: int) -> UnitPlace | None:
        """Return the place of the units that `read` would return, without reading the file. Valid for this turn only.

        None if the file is not open, or if the view is dropped or damaged.
        """
        if offset >= view.tail_start:
            return view.in_memory(offset, count), -1, 0, 0, 0, 0
        if view.dropped or view.damaged:
            return None
        count = min(count, view.tail_start - offset)
        return self._reader.place(queue_directory(view.topic, view.queue_id), view.seed, offset, count)

    def read_later(
        self, view: QueueView, offset: int, count: int, done: Callable[[bytes | BaseException], None]
    ) -> None:
        """Read as `read` does, on a worker. `done` may get `CorruptionError`, `BusyError` or `OSError`."""
        if offset >= view.tail_start:
            done(view.in_memory(offset, count))
            return
        if view.dropped:  # files under its name may belong to a newer queue already
            done(CorruptionError(f"the files of {view.topic}/{view.queue_id} are not its own any more: ask again"))
            return
        if view.damaged:
            done(_mending_error(view))
            return
        count = min(count, view.tail_start - offset, self.layout.units_per_file)
        directory = queue_directory(view.topic, view.queue_id)

        def finished(result: bytes | BaseException) -> None:
            if isinstance(result, CorruptionError):
                self.found_damage(view, offset, result)
            done(result)

        self._reader.read(directory, view.seed, offset, count, finished)

    def first_kept(
        self, view: QueueView, start: int, position: int, read: Callable[[int, int], bytes]
    ) -> Callable[[], int]:
        """Return a function for a worker. It finds the first offset from `start` on with a record at or above
        `position`.

        The function compares the records at the found offset and before it with the log, which `read` reads. It raises
        `DamagedViewError` if the files are damaged or the log contradicts them, and `UnreadableRecordError` if the log
        cannot be read there. It also raises the other errors of `read`.
        """
        tail_start, tail = view.tail_start, bytes(view.tail)
        directory = queue_directory(view.topic, view.queue_id)

        def unit_at(offset: int) -> UnitFields:
            if offset >= tail_start:
                return READ_UNIT.unpack_from(tail, (offset - tail_start) * UNIT_BYTES)
            return READ_UNIT.unpack(read_units(self._disk, self.layout, directory, view.seed, offset, 1))

        def search() -> int:
            try:
                found = first_where(start, end, lambda offset: unit_at(offset)[0] >= position)
                around = {offset: unit_at(offset) for offset in (found - 1, found) if start <= offset < end}
            except CorruptionError as error:
                raise DamagedViewError(view, start, str(error), contradicted=False) from error
            for offset, (at, size, _) in around.items():
                try:
                    RecordPlace(view.queue_id, offset, at, size).require_in(read(at, PLACE_BYTES))
                except OtherRecordError as error:
                    raise DamagedViewError(view, start, str(error), contradicted=True) from error
                except CorruptionError as error:
                    raise UnreadableRecordError(at, str(error)) from error
            return found

        end = view.end
        return search

    def found_damage(self, view: QueueView, offset: int, error: Exception) -> None:
        """Mark a view as damaged because a read at `offset` failed. The view held `offset` when the read began.

        If the log contradicts the files, all of them will be written anew, even files with valid stamps.
        """
        if view.dropped or view.damaged or not view.start <= offset < view.written:
            return  # a trim, a deletion or a snapshot has removed these units meanwhile
        _logger.warning(
            "event=queue_damaged topic=%s queue_id=%d error=%r consequence='its files are written anew from the log'",
            view.topic,
            view.queue_id,
            str(error),
        )
        view.damaged = True
        self.damaged[view] = isinstance(error, DamagedViewError) and error.contradicted
        self._reader.forget(queue_directory(view.topic, view.queue_id) + "/")
        self.on_damage()

    def mended(self, view: QueueView) -> None:
        """Mark a view as undamaged, because its files match the log again."""
        self._reader.forget(queue_directory(view.topic, view.queue_id) + "/")
        self._clear_damage([view])

    async def wait_for_mending(self, view: QueueView) -> bool:
        """Wait while a view is damaged, at most `MEND_WAIT_S`. Return whether it is undamaged."""
        deadline = self._env.now() + MEND_WAIT_S
        while view.damaged and not view.dropped and (left_s := deadline - self._env.now()) > 0:
            waiter = asyncio.get_running_loop().create_future()
            timer = self._env.call_later(left_s, partial(_release, waiter))
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                timer.cancel()
        return not view.damaged

    def _clear_damage(self, views: Iterable[QueueView]) -> None:
        for view in views:
            view.damaged = False
            self.damaged.pop(view, None)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            _release(waiter)

    def forget_damage(self, view: QueueView) -> None:
        """Forget a damaged view that needs no mending any more: it is another queue's, or nobody's."""
        self._clear_damage([view])

    def begin_mending(self, view: QueueView, done: Callable[[BadUnits | BaseException], None]) -> None:
        """Remove the files of a damaged view that are not what was written.

        Units that are appended from now on go to other files.
        """
        directory, removes_all = queue_directory(view.topic, view.queue_id), self.damaged.get(view, False)

        def work() -> BadUnits:
            self._files.forget(directory)
            # Earlier jobs have counted what they wrote, and no other job runs beside this one.
            return self._files.remove_bad(directory, view.seed, view.start, view.written, everything=removes_all)

        self._writer.submit(work, done)

    def verify(self, view: QueueView, offset: int, count: int, done: Callable[[BaseException | None], None]) -> None:
        """Read `count` written units from `offset` on, to verify them for a scrub."""
        directory = queue_directory(view.topic, view.queue_id)

        def work() -> None:
            read_units(self._disk, self.layout, directory, view.seed, offset, count)

        self._writer.submit(work, done)

    def write_again(self, batches: list[UnitBatch], done: Callable[[BaseException | None], None]) -> None:
        """Write units of damaged views at their places. The next checkpoint syncs them."""
        self._writer.submit(partial(self._files.write, batches), done)

    def flush(self) -> None:
        """Hand all unwritten units to the worker."""
        while self._dirty:
            self._flush_batch()

    def _flush_batch(self) -> None:
        views, self._dirty = self._dirty[:MAX_QUEUES_PER_BATCH], self._dirty[MAX_QUEUES_PER_BATCH:]
        self._release_idle()
        batches: list[UnitBatch] = []
        ends: list[tuple[QueueView, int]] = []
        for view in views:
            view.dirty = False
            if not view.dropped and view.end > view.written:
                directory = queue_directory(view.topic, view.queue_id)
                batches.append(UnitBatch(directory, view.written, view.unwritten(), view.seed))
                ends.append((view, view.end))
        self._flushing += 1
        self._writer.submit(partial(self._files.write, batches), partial(self._flushed, ends))

    def _flushed(self, ends: Sequence[tuple[QueueView, int]], result: BaseException | None) -> None:
        self._flushing -= 1
        if isinstance(result, BaseException):
            if not self._has_complained:
                _logger.warning("event=queues_not_written error=%r consequence='tried again'", str(result))
            self._has_complained = True
            self._failed_writes += 1
            self.appended(view for view, _ in ends)
        else:
            self._has_complained = False
            busy = len(ends) + len(self._dirty)
            keep = min(MAX_RESIDENT_UNITS_PER_QUEUE, MAX_RESIDENT_UNITS // (busy or 1))
            for view, end in ends:
                if not view.dropped and view.written < end <= view.end:
                    view.mark_written(end, keep)
                    self._resident.append(view)
        if self._resident or self._dirty:
            self._arm()

    def _release_idle(self) -> None:
        for view in self._resident:
            if not view.dirty:
                view.mark_written(view.written, 0)
        self._resident.clear()

    def _arm(self) -> None:
        if not self._timer_armed and not self._is_halted:
            self._timer_armed = True
            self._env.call_later(self._flush_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_armed = False
        if self._is_halted:
            return
        if self._flushing:
            self._arm()
        elif self._dirty:
            self._flush_batch()
        else:
            self._release_idle()

    def sync(self, done: Callable[[str | None], None]) -> None:
        """Make everything durable that the worker has received so far, in small steps unless `is_urgent`.

        `done` gets the failure, or None. After a failed sync the kernel may have dropped written data and still report
        later syncs as done. So nothing is synced again before the next start.
        """
        failed_writes = self._failed_writes

        def sync_batch(paths: list[str]) -> None:
            self._unsynced_count = len(paths)
            if self._failed_writes != failed_writes or self._sync_failed:
                failure = self._sync_failed or "files of consume queues cannot be written"
                self._writer.submit(partial(self._files.put_back, paths), lambda _result: done(failure))
            elif not paths:
                done(None)
            else:
                batch, rest = paths[:SYNC_BATCH_FILES], paths[SYNC_BATCH_FILES:]
                self._writer.submit(partial(self._files.sync, batch), partial(on_batch_synced, rest))

        def on_batch_synced(rest: list[str], result: BaseException | None) -> None:
            if isinstance(result, BaseException):
                self._sync_failed = f"files of consume queues cannot be synced: {result}"
            if rest and not self._sync_failed:
                self._env.call_later(0 if self.is_urgent else SYNC_PAUSE_S, partial(sync_batch, rest))
            else:
                sync_batch([])

        def on_taken(paths: list[str] | BaseException) -> None:
            invariant(isinstance(paths, list), "taking the list of unsynced files cannot fail", found=paths)
            unsynced = paths if isinstance(paths, list) else []
            self._unsynced_count = len(unsynced)
            if self.is_urgent and len(unsynced) > SYNC_BATCH_FILES:
                self._writer.submit(partial(self._files.sync_all, unsynced), partial(on_all_synced, unsynced))
            else:
                sync_batch(unsynced)

        def on_all_synced(unsynced: list[str], unsynced_left: list[str] | BaseException) -> None:
            if isinstance(unsynced_left, BaseException):
                on_batch_synced(unsynced, unsynced_left)
            else:
                sync_batch(unsynced_left)

        self._writer.submit(self._files.take_unsynced, on_taken)

    def start_over(self, view: QueueView, offset: int) -> None:
        """Remove a queue's units and files, and the checkpoint that lists them. The next unit is that of `offset`."""
        directory = queue_directory(view.topic, view.queue_id)
        self._reader.forget(directory + "/")
        view.reset(offset, offset)
        self._clear_damage([view])
        self._remove(directory)

    def delete_topic(self, topic: str, created_position: int) -> None:
        """Move the files of a deleted topic aside. They are removed when the checkpoint no longer lists them."""
        self._reader.forget(topic_directory(topic) + "/")
        self._writer.submit(partial(self._files.set_aside, topic, created_position), partial(self._on_removed, topic))

    def wipe(self) -> None:
        """Remove the files of all queues and the checkpoint. The caller replaces the views."""
        self._reader.forget(DIRECTORY)
        self._dirty.clear()
        self._resident.clear()
        self._clear_damage(list(self.damaged))
        self._remove(DIRECTORY)

    def remove_below(self, starts: Iterable[tuple[QueueView, int]]) -> None:
        """Remove the files that hold only units below the given offset of their queue.

        Files of a queue that was dropped meanwhile stay: its name may belong to another queue by now.
        """
        jobs = [(queue_directory(view.topic, view.queue_id), start) for view, start in starts if not view.dropped]
        self._reader.forget_in({directory for directory, _ in jobs})

        def work() -> None:
            for directory, start in jobs:
                self._files.remove_below(directory, start)

        self._writer.submit(work, partial(self._on_removed, f"{len(jobs)} queues"))

    def _remove(self, directory: str) -> None:
        def work() -> None:
            remove_checkpoint(self._disk)
            self._files.remove(directory)

        self._writer.submit(work, partial(self._on_removed, directory))

    @staticmethod
    def _on_removed(subject: str, result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            _logger.warning("event=files_not_removed of=%r error=%r", str(subject), str(result))

    def halt(self) -> None:
        """Stop the timer that hands units to the worker. Units appended from now on stay in memory until `flush`."""
        self._is_halted = True

    def close(self, done: Callable[[BaseException | None], None]) -> None:
        """Have the worker close the files after all its other work. Call `halt` before."""
        files = self._reader.close()

        def work() -> None:
            close_all(files)
            self._files.close()

        self._writer.submit(work, done)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _mending_error(view: QueueView) -> CorruptionError:
    return CorruptionError(
        f"the files of {view.topic}/{view.queue_id} are written anew from the log: ask another node, or later"
    )
