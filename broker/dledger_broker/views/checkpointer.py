"""Checkpointer: decides when the consume queues' checkpoint moves, and removes files only after that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from dledger.environment import Environment
from dledger.store.disk import Disk
from dledger_broker.views.checkpoint import Checkpoint, TopicExtent, load_checkpoint, rotten_copies, save_checkpoint
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.leftovers import remove_slowly
from dledger_broker.views.logreader import AppliedLog
from dledger_broker.views.unitfiles import DELETED_PREFIX, DIRECTORY, deleted_directory
from dledger_broker.views.writer import ViewWriter

DURABLE_POLL_S = 0.1
"""Interval in seconds at which a finished checkpoint checks whether the log itself is durable up to its position."""

CHECKPOINT_SHARE = 0.1
"""Maximum share of the time for checkpoints that only make a start shorter. With many queues they sync many files."""

SCRUB_S = 3600.0
"""Interval in seconds at which the copies are read again."""

_logger = logging.getLogger(__name__)


class DoneCallback(Protocol):
    """Callback of code that waits for a checkpoint."""

    def __call__(self, *, saved: bool) -> None:
        """Note that the checkpoint is on the disk, or cannot be written."""


def _ignore_outcome(*, saved: bool) -> None:
    """Do nothing: the default callback."""


class Checkpointer:
    """Writer of checkpoints, after every `every_bytes` of the log and on request.

    `capture` returns the applied position and the present extents of all queues. A checkpoint is saved once the queues'
    files are synced and the log is durable up to its position. Files that the checkpoint on disk lists are removed only
    after a later checkpoint no longer lists them. Otherwise they would seem lost after a crash in between.
    `incarnation` of the data directory is set before the first checkpoint.
    """

    def __init__(
        self,
        disk: Disk,
        env: Environment,
        writer: ViewWriter,
        queues: ConsumeQueues,
        capture: Callable[[], tuple[int, list[TopicExtent]]],
        replica: AppliedLog,
        every_bytes: int,
    ) -> None:
        self._disk = disk
        self._env = env
        self._writer = writer
        self._queues = queues
        self._capture = capture
        self._replica = replica
        self._every_bytes = every_bytes
        self.incarnation = ""
        self._position = 0
        self._is_running = False
        self._started_at_s = self._duration_s = 0.0
        self._is_closing = False
        self._requested: list[DoneCallback] = []

    @property
    def position(self) -> int:
        """Log position of the newest checkpoint."""
        return self._position

    def maybe_start(self, applied_position: int) -> None:
        """Start a checkpoint if enough was applied since the last one."""
        if applied_position - self._position >= self._every_bytes and not self._is_running and not self._is_closing:
            self._start([])

    def offer(self) -> None:
        """Write a checkpoint now, unless one is being written or the last one was too recent for its duration."""
        is_rested = self._env.now() - self._started_at_s >= self._duration_s / CHECKPOINT_SHARE
        if is_rested and not self._is_running and not self._is_closing:
            self._start([])

    def request(self, done: DoneCallback = _ignore_outcome) -> None:
        """Write a checkpoint of the present content or of a later one. `done` is called when it is saved, or
        cannot be.
        """
        if self._is_closing:
            done(saved=False)
            return
        self._requested.append(done)
        if not self._is_running:
            self._start_requested()

    def scrub(self) -> None:
        """Read the copies on disk now, and again every `SCRUB_S` seconds. A new checkpoint replaces a rotten copy.

        Otherwise the next start would rebuild the units that the older copy does not list. A node without traffic
        writes no checkpoint by itself.
        """
        if not self._is_closing:
            self._env.call_later(SCRUB_S, self.scrub)
            self._writer.submit(partial(rotten_copies, self._disk), self._on_scrubbed)

    def remove_leftovers(self) -> None:
        """Remove, bit by bit, the files that the start has put aside."""
        remove_slowly(self._disk, self._env, self._writer, lambda: self._is_closing)

    def _on_scrubbed(self, rotten: list[str] | BaseException) -> None:
        if isinstance(rotten, BaseException):
            _logger.warning("event=checkpoint_rotten paths=%r", str(rotten))
        elif rotten and not self._is_closing:
            _logger.warning("event=rot_mended paths=%r consequence='a new checkpoint is written'", ", ".join(rotten))
            self.request()

    def close(self, done: Callable[[], None]) -> None:
        """Write the last checkpoint, if the log is already durable. `done` is called in any case. No checkpoint is
        written later.
        """

        def finished(*, saved: bool) -> None:  # noqa: ARG001 - whether it was or not
            done()

        self.request(finished)
        self._is_closing = self._queues.is_urgent = True

    def _start_requested(self) -> None:
        requested, self._requested = self._requested, []
        self._start(requested)

    def _start(self, waiters: list[DoneCallback]) -> None:
        self._is_running = True
        self._started_at_s = self._env.now()
        position, topics = self._capture()
        self._position = max(self._position, position)
        self._queues.flush()
        self._queues.sync(partial(self._on_synced, position, topics, waiters))

    def _on_synced(
        self, position: int, topics: list[TopicExtent], waiters: list[DoneCallback], failure: str | None
    ) -> None:
        if failure is not None:
            _logger.warning("event=checkpoint_stays error=%r", str(failure))
            self._finish(waiters, saved=False)
        elif position > self._replica.log.durable_position:
            if self._is_closing:
                self._finish(waiters, saved=False)
                return
            self._env.call_later(DURABLE_POLL_S, partial(self._on_synced, position, topics, waiters, failure))
        else:
            save = partial(_save, self._disk, position, topics, self.incarnation)
            self._writer.submit(save, partial(self._on_saved, waiters))

    def _on_saved(self, waiters: list[DoneCallback], result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            _logger.warning("event=checkpoint_not_written error=%r", str(result))
        self._finish(waiters, saved=result is None)

    def _finish(self, waiters: list[DoneCallback], *, saved: bool) -> None:
        self._is_running = False
        self._duration_s = self._env.now() - self._started_at_s
        for waiter in waiters:
            waiter(saved=saved)
        if self._requested and not self._is_running:
            self._start_requested()


def _save(disk: Disk, position: int, topics: list[TopicExtent], incarnation: str) -> None:
    previous = load_checkpoint(disk)
    sequence = 0 if previous is None else previous.sequence + 1
    save_checkpoint(disk, Checkpoint(position, topics, incarnation, sequence))
    if not disk.exists(DIRECTORY):
        return
    listed = {deleted_directory(extent.topic, extent.created_position) for extent in topics}
    for name in disk.listdir(DIRECTORY):
        if name.startswith(DELETED_PREFIX) and f"{DIRECTORY}/{name}" not in listed:
            disk.rmtree(f"{DIRECTORY}/{name}")
