"""The work on one snapshot that is being written: on threads of a lane, one piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import TypeVar, cast

from dledger.environment import Environment
from dledger.invariants import invariant
from dledger.store.disk import Buffer
from dledger.store.snapshots import SnapshotWriter
from dledger.types import SnapshotMeta

T = TypeVar("T")


class SnapshotJob:
    """`run` and `drop` are for the event loop; the writer belongs to whatever work is running."""

    def __init__(self, environment: Environment, lane: str, writer: SnapshotWriter) -> None:
        self._environment = environment
        self._lane = lane
        self._writer = writer
        self._lock = Lock()
        self._working = False
        self._dropped = False
        self.busy = False
        """Some work was handed over, and what came of it was not told yet."""

    @property
    def meta(self) -> SnapshotMeta:
        """What is being written."""
        return self._writer.meta

    def run(self, work: Callable[[SnapshotWriter], T], done: Callable[[T | BaseException], None]) -> None:
        """Do `work(writer)` on a worker, then tell its result or exception; nothing is told once the job is dropped."""
        invariant(not self.busy and not self._dropped, "one work at a time, and none after the end", meta=self.meta)
        self.busy = self._working = True

        def finished(result: T | BaseException | None) -> None:
            self.busy = False
            if not self._dropped:
                done(cast("T | BaseException", result))

        self._environment.run_blocking(self._lane, lambda: self._run(work), finished)

    def write(self, pieces: Iterable[Buffer], done: Callable[[BaseException | None], None]) -> None:
        """Have a worker add data, see `SnapshotWriter.write`."""

        def work(writer: SnapshotWriter) -> None:
            for piece in pieces:
                writer.write(piece)

        self.run(work, done)

    def drop(self) -> None:
        """Do nothing more, and remove what was written unless it is committed.

        A work that runs ends with that: by the time its result is told, no thread may be left that could.
        """
        with self._lock:
            self._dropped = True
            working = self._working
        if not working:
            self._environment.run_blocking(self._lane, self._writer.abort, _ignore)

    def _run(self, work: Callable[[SnapshotWriter], T]) -> T | None:
        try:
            return None if self._dropped else work(self._writer)
        finally:
            with self._lock:
                self._working = False
                dropped = self._dropped
            if dropped:
                self._writer.abort()


def _ignore(_result: object) -> None:
    """What could not be removed is removed at the next start."""
