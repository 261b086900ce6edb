"""All consume queues of a broker: appended in memory, written in batches, read from either.

What is appended can be read at once; the files follow every `flush_ms` on the view writer, at most one write for each
queue and batch.  A batch takes the queues that have waited longest, so that thousands of busy queues cost no more than
a few hundred: the others' units, 20 bytes each, wait in memory.  A failed write is tried again with the next batch and
stops the checkpoint, nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from dledger.environment import Environment
from dledger.errors import CorruptionError
from dledger.invariants import invariant
from dledger.store.disk import Disk
from dledger_broker.views.checkpoint import remove_checkpoint
from dledger_broker.views.queueview import QueueView
from dledger_broker.views.unitfiles import (
    DIRECTORY,
    FileLayout,
    QueueFileWriter,
    UnitBatch,
    queue_directory,
    topic_directory,
)
from dledger_broker.views.unitreader import QueueFileReader, UnitPlace, close_all, read_units
from dledger_broker.views.units import UNIT_BYTES, first_where
from dledger_broker.views.writer import ViewWriter

MAX_RESIDENT_UNITS = 262_144
"""Written units that all queues together keep in memory for consumers at the end of the log: 5 MB."""
MAX_RESIDENT_UNITS_PER_QUEUE = 1_024
MAX_QUEUES_PER_BATCH = 256
SYNC_BATCH_FILES = 8
SYNC_PAUSE_S = 0.05
"""A checkpoint syncs so many files at a time and leaves the disk to the log in between."""

_logger = logging.getLogger(__name__)


class ConsumeQueues:
    """Appends go to a `QueueView`; this class moves them to files, reads them back, and removes them."""

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
        self._complained = False
        self._sync_failed = ""
        self._halted = False
        self._to_sync = 0
        self.hurry = False

    @property
    def backlog(self) -> str:
        """What is not on the disk yet, for who waits for that; "" if nothing is waited for."""
        batches = self._flushing + -(-len(self._dirty) // MAX_QUEUES_PER_BATCH)
        if batches:
            return f"the files of about {batches * MAX_QUEUES_PER_BATCH} consume queues are to be written"
        return f"{self._to_sync} files of consume queues are to be synced" if self._to_sync else ""

    def appended(self, views: Iterable[QueueView]) -> None:
        """Units were appended to these views."""
        for view in views:
            if not view.dirty:
                view.dirty = True
                self._dirty.append(view)
        self._arm()

    def read(self, view: QueueView, offset: int, count: int) -> bytes | None:
        """Up to `count` units from `offset` on, at least one; None if that needs the disk (`read_later`).

        `offset` is one that the view holds.
        """
        if offset >= view.tail_start:
            return view.in_memory(offset, count)
        if view.dropped:
            return None  # see `read_later`
        count = min(count, view.tail_start - offset)
        return self._reader.read_nowait(queue_directory(view.topic, view.queue_id), offset, count)

    def place(self, view: QueueView, offset: int, count: int) -> UnitPlace | None:
        """As `read`, but those of a file are not read: for this turn of the event loop."""
        if offset >= view.tail_start:
            return view.in_memory(offset, count), -1, 0, 0
        if view.dropped:
            return None
        count = min(count, view.tail_start - offset)
        return self._reader.place(queue_directory(view.topic, view.queue_id), offset, count)

    def read_later(
        self, view: QueueView, offset: int, count: int, done: Callable[[bytes | BaseException], None]
    ) -> None:
        """As `read`, on a worker.  `done` may get `CorruptionError` (files are gone), `BusyError` or `OSError`."""
        if offset >= view.tail_start:
            done(view.in_memory(offset, count))
            return
        if view.dropped:  # what lies under its name is no longer its own, and would be kept open for the next one's
            done(CorruptionError(f"the files of {view.topic}/{view.queue_id} are not its own any more: ask again"))
            return
        count = min(count, view.tail_start - offset, self.layout.units_per_file)
        directory = queue_directory(view.topic, view.queue_id)
        self._reader.read(directory, offset, count, done)

    def first_kept(self, view: QueueView, position: int) -> Callable[[], int]:
        """Work for a worker: the first offset whose record lies at or above a log position."""
        start, tail_start, tail = view.start, view.tail_start, bytes(view.tail)
        directory = queue_directory(view.topic, view.queue_id)

        def position_at(offset: int) -> int:
            if offset >= tail_start:
                unit = tail[(offset - tail_start) * UNIT_BYTES :][:8]
            else:
                unit = read_units(self._disk, self.layout, directory, offset, 1)[:8]
            return int.from_bytes(unit, "big")

        end = view.end
        return lambda: first_where(start, end, lambda offset: position_at(offset) >= position)

    def flush(self) -> None:
        """Hand all units that are not written to the worker."""
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
                batches.append(UnitBatch(directory, view.written, view.unwritten()))
                ends.append((view, view.end))
        self._flushing += 1
        self._writer.submit(partial(self._files.write, batches), partial(self._flushed, ends))

    def _flushed(self, ends: Sequence[tuple[QueueView, int]], result: BaseException | None) -> None:
        self._flushing -= 1
        if isinstance(result, BaseException):
            if not self._complained:
                _logger.warning("event=queues_not_written error=%r consequence='tried again'", str(result))
            self._complained = True
            self._failed_writes += 1
            self.appended(view for view, _ in ends)
        else:
            self._complained = False
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
        if not self._timer_armed and not self._halted:
            self._timer_armed = True
            self._env.call_later(self._flush_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_armed = False
        if self._halted:
            return
        if self._flushing:
            self._arm()
        elif self._dirty:
            self._flush_batch()
        else:
            self._release_idle()

    def sync(self, done: Callable[[str | None], None]) -> None:
        """Make everything that was handed to the worker so far durable, in small steps unless in a `hurry`.

        `done` is told what could not be written or synced, or None.  After a failed sync the page cache proves nothing,
        so there is no other one before the next start.
        """
        failed_writes = self._failed_writes

        def step(paths: list[str]) -> None:
            self._to_sync = len(paths)
            if self._failed_writes != failed_writes or self._sync_failed:
                failure = self._sync_failed or "files of consume queues cannot be written"
                self._writer.submit(partial(self._files.put_back, paths), lambda _result: done(failure))
            elif not paths:
                done(None)
            else:
                batch, rest = paths[:SYNC_BATCH_FILES], paths[SYNC_BATCH_FILES:]
                self._writer.submit(partial(self._files.sync, batch), partial(after, rest))

        def after(rest: list[str], result: BaseException | None) -> None:
            if isinstance(result, BaseException):
                self._sync_failed = f"files of consume queues cannot be synced: {result}"
            if rest and not self._sync_failed:
                self._env.call_later(0 if self.hurry else SYNC_PAUSE_S, partial(step, rest))
            else:
                step([])

        def taken(paths: list[str] | BaseException) -> None:
            invariant(isinstance(paths, list), "taking the list of unsynced files cannot fail", found=paths)
            unsynced = paths if isinstance(paths, list) else []
            self._to_sync = len(unsynced)
            if self.hurry and len(unsynced) > SYNC_BATCH_FILES:
                self._writer.submit(partial(self._files.sync_all, unsynced), partial(synced, unsynced))
            else:
                step(unsynced)

        def synced(unsynced: list[str], left: list[str] | BaseException) -> None:
            if isinstance(left, BaseException):
                after(unsynced, left)
            else:
                step(left)

        self._writer.submit(self._files.take_unsynced, taken)

    def start_over(self, view: QueueView, offset: int) -> None:
        """Forget a queue's units and files, and the checkpoint that lists them; the next unit is that of `offset`."""
        directory = queue_directory(view.topic, view.queue_id)
        self._reader.forget(directory + "/")
        view.reset(offset, offset)
        self._remove(directory)

    def delete_topic(self, topic: str, created_position: int) -> None:
        """A topic no longer exists: set its files aside until a checkpoint no longer lists them."""
        self._reader.forget(topic_directory(topic) + "/")
        self._writer.submit(partial(self._files.set_aside, topic, created_position), partial(self._removed, topic))

    def wipe(self) -> None:
        """Remove the files of all queues and the checkpoint; the caller replaces the views."""
        self._reader.forget(DIRECTORY)
        self._dirty.clear()
        self._resident.clear()
        self._remove(DIRECTORY)

    def remove_below(self, starts: Iterable[tuple[QueueView, int]]) -> None:
        """Remove the files that lie wholly below an offset of their queue.

        Not those of a queue that was dropped meanwhile: its name may be another one's by now.
        """
        jobs = [(queue_directory(view.topic, view.queue_id), start) for view, start in starts if not view.dropped]
        self._reader.forget_in({directory for directory, _ in jobs})

        def work() -> None:
            for directory, start in jobs:
                self._files.remove_below(directory, start)

        self._writer.submit(work, partial(self._removed, f"{len(jobs)} queues"))

    def _remove(self, directory: str) -> None:
        def work() -> None:
            remove_checkpoint(self._disk)
            self._files.remove(directory)

        self._writer.submit(work, partial(self._removed, directory))

    @staticmethod
    def _removed(what: str, result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            _logger.warning("event=files_not_removed of=%r error=%r", str(what), str(result))

    def halt(self) -> None:
        """Hand the worker nothing more by itself: what is appended from now on stays in memory."""
        self._halted = True

    def close(self, done: Callable[[BaseException | None], None]) -> None:
        """Have the worker close the files behind all that it was handed; the queues have halted."""
        files = self._reader.close()

        def work() -> None:
            close_all(files)
            self._files.close()

        self._writer.submit(work, done)
