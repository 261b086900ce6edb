"""Work on one snapshot that is being written: one piece of work at a time, on threads of a lane (`Environment`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import TypeVar, cast

from dledger.environment import Environment
from dledger.store.disk import Buffer
from dledger.store.snapshots import SnapshotWriter
from dledger.types import SnapshotMeta
from dledger_base.invariants import invariant

T = TypeVar("T")


class SnapshotJob:
    """Runs work on the writer of a snapshot.

    Call `run`, `write` and `drop` on the event loop only. Only the running work uses the writer.
    """

    def __init__(self, environment: Environment, lane: str, writer: SnapshotWriter) -> None:
        self._environment = environment
        self._lane = lane
        self._writer = writer
        self._lock = Lock()
        self._is_working = False
        self._is_dropped = False
        self.busy = False
        """True from a call of `run` until the result of its work has reached the event loop."""

    @property
    def meta(self) -> SnapshotMeta:
        """Meta of the snapshot that is being written."""
        return self._writer.meta

    def run(self, work: Callable[[SnapshotWriter], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work(writer)` on a worker, then call `done` with its result or exception on the event loop.

        `done` is not called once the job is dropped.
        """
        invariant(not self.busy and not self._is_dropped, "one work at a time, and none after the end", meta=self.meta)
        self.busy = self._is_working = True

        def finished(result: T | BaseException | None) -> None:
            self.busy = False
            if not self._is_dropped:
                done(cast("T | BaseException", result))

        self._environment.run_blocking(self._lane, lambda: self._run(work), finished)

    def write(self, pieces: Iterable[Buffer], done: Callable[[BaseException | None], None]) -> None:
        """Have a worker add data to the snapshot with `SnapshotWriter.write`."""

        def work(writer: SnapshotWriter) -> None:
            for piece in pieces:
                writer.write(piece)

        self.run(work, done)

    def drop(self) -> None:
        """Do nothing more, and remove the written files unless the snapshot is committed.

        If work is running, its thread removes the files at the end of the work. It does not leave that to the event
        loop, because the lane may have no thread any more when the result arrives there.
        """
        with self._lock:
            self._is_dropped = True
            working = self._is_working
        if not working:
            self._environment.run_blocking(self._lane, self._writer.abort, _ignore)

    def _run(self, work: Callable[[SnapshotWriter], T]) -> T | None:
        try:
            return None if self._is_dropped else work(self._writer)
        finally:
            with self._lock:
                self._is_working = False
                dropped = self._is_dropped
            if dropped:
                self._writer.abort()


def _ignore(_result: object) -> None:
    """Do nothing. Files that could not be removed are removed at the next start."""
