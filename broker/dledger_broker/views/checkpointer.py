"""Decides when the consume queues' checkpoint moves, and holds back what must not happen before it has."""

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
"""How often a finished checkpoint looks whether the log itself is durable up to its position."""

CHECKPOINT_SHARE = 0.1
"""The part of the time that checkpoints which only make a start shorter may take: with many queues they sync many
files."""

SCRUB_S = 3600.0
"""How often the copies are read again."""

_logger = logging.getLogger(__name__)


class Told(Protocol):
    """Who waits for a checkpoint."""

    def __call__(self, *, saved: bool) -> None:
        """It is on the disk, or cannot be."""


def _nobody_waits(*, saved: bool) -> None:
    """As of now."""


class Checkpointer:
    """Writes a checkpoint after every `every_bytes` of the log and whenever one is asked for.

    `capture` returns the applied position and what all queues hold at this very moment.  A checkpoint is saved once the
    queues' files are synced and the log is durable up to its position.  Files that the checkpoint on disk lists are
    removed only after a later one no longer lists them: otherwise a crash in between would look like lost files.
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
        self._running = False
        self._begun_at = self._took_s = 0.0
        self._last = False
        self._requested: list[Told] = []

    @property
    def position(self) -> int:
        """Log position of the newest checkpoint."""
        return self._position

    def maybe_start(self, applied_position: int) -> None:
        """Start a checkpoint if enough was applied since the last one."""
        if applied_position - self._position >= self._every_bytes and not self._running and not self._last:
            self._start([])

    def offer(self) -> None:
        """Write a checkpoint now if none is being written and the last one was not too long ago for what it took."""
        rested = self._env.now() - self._begun_at >= self._took_s / CHECKPOINT_SHARE
        if rested and not self._running and not self._last:
            self._start([])

    def request(self, done: Told = _nobody_waits) -> None:
        """Write a checkpoint of what is held now or later; `done` is told when it is saved, or cannot be."""
        if self._last:
            done(saved=False)
            return
        self._requested.append(done)
        if not self._running:
            self._take_requested()

    def scrub_later(self) -> None:
        """Read the copies on disk from time to time; one that has rotted is replaced by a new checkpoint.

        Without that the next start would rebuild what the other copy, an older one, does not list.
        """
        self._env.call_later(SCRUB_S, self._scrub)

    def remove_leftovers(self) -> None:
        """Remove the files that the start has put aside, bit by bit."""
        remove_slowly(self._disk, self._env, self._writer, lambda: self._last)

    def _scrub(self) -> None:
        if not self._last:
            self.scrub_later()
            self._writer.submit(partial(rotten_copies, self._disk), self._scrubbed)

    def _scrubbed(self, rotten: list[str] | BaseException) -> None:
        if isinstance(rotten, BaseException):
            _logger.warning("event=checkpoint_rotten paths=%r", str(rotten))
        elif rotten and not self._last:
            _logger.warning("event=rot_mended paths=%r consequence='a new checkpoint is written'", ", ".join(rotten))
            self.request()

    def close(self, done: Callable[[], None]) -> None:
        """Write the last checkpoint, if the log is durable already; `done` follows in any case.  None follows it."""

        def finished(*, saved: bool) -> None:  # noqa: ARG001 - whether it was or not
            done()

        self.request(finished)
        self._last = self._queues.hurry = True

    def _take_requested(self) -> None:
        requested, self._requested = self._requested, []
        self._start(requested)

    def _start(self, waiters: list[Told]) -> None:
        self._running = True
        self._begun_at = self._env.now()
        position, topics = self._capture()
        self._position = max(self._position, position)
        self._queues.flush()
        self._queues.sync(partial(self._synced, position, topics, waiters))

    def _synced(self, position: int, topics: list[TopicExtent], waiters: list[Told], failure: str | None) -> None:
        if failure is not None:
            _logger.warning("event=checkpoint_stays error=%r", str(failure))
            self._finish(waiters, saved=False)
        elif position > self._replica.log.durable_position:
            if self._last:
                self._finish(waiters, saved=False)
                return
            self._env.call_later(DURABLE_POLL_S, partial(self._synced, position, topics, waiters, failure))
        else:
            save = partial(_save, self._disk, position, topics, self.incarnation)
            self._writer.submit(save, partial(self._saved, waiters))

    def _saved(self, waiters: list[Told], result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            _logger.warning("event=checkpoint_not_written error=%r", str(result))
        self._finish(waiters, saved=result is None)

    def _finish(self, waiters: list[Told], *, saved: bool) -> None:
        self._running = False
        self._took_s = self._env.now() - self._begun_at
        for waiter in waiters:
            waiter(saved=saved)
        if self._requested and not self._running:
            self._take_requested()


def _save(disk: Disk, position: int, topics: list[TopicExtent], incarnation: str) -> None:
    last = load_checkpoint(disk)
    sequence = 0 if last is None else last.sequence + 1
    save_checkpoint(disk, Checkpoint(position, topics, incarnation, sequence))
    if not disk.exists(DIRECTORY):
        return
    listed = {deleted_directory(extent.topic, extent.created_position) for extent in topics}
    for name in disk.listdir(DIRECTORY):
        if name.startswith(DELETED_PREFIX) and f"{DIRECTORY}/{name}" not in listed:
            disk.rmtree(f"{DIRECTORY}/{name}")
