"""Taking of snapshots: writes them at marked segment starts, and trims the log only up to a snapshot.

Workers write a snapshot, one piece of work at a time. Files that a trim dropped are deleted on workers, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import TypeVar, cast

from dledger.consensus.engine import Engine
from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.replica.driver import Driver
from dledger.replica.storing.flusher import Flusher
from dledger.store.disk import Buffer
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore, SnapshotWriter
from dledger.types import SnapshotMeta
from dledger_base.invariants import invariant
from dledger_base.loop_holds import SNAPSHOT, TRIM

SLICE_S = 0.005
PAUSE_S = 0.01
T = TypeVar("T")


class SnapshotTaker:
    """Writes one snapshot at a time. A mark that is reached meanwhile is skipped."""

    def __init__(
        self,
        environment: Environment,
        store: LogStore,
        snapshots: SnapshotStore,
        remover: Remover,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._environment = environment
        self._encode_holds = environment.holds.part(SNAPSHOT)
        self._trim_holds = environment.holds.part(TRIM)
        self._store = store
        self._snapshots = snapshots
        self._remover = remover
        self._engine = engine
        self._driver = driver
        self._job: SnapshotJob | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._trim_to = -1
        self._waits_for_log = False
        self._verified_snapshot: SnapshotMeta | None = None
        """The snapshot that was verified so that the log can be trimmed to it."""
        self._is_verifying = False
        self._started_at = 0.0
        self.on_trimmed: list[Callable[[int], None]] = []
        """Callbacks for the position at which the log begins after a trim."""
        self.took_s = 0.0
        """Seconds that writing the last snapshot took."""

    @property
    def trim_position(self) -> int:
        """Position where the group decided that its log begins, as known since the state was put in place; else -1."""
        return self._trim_to

    @property
    def busy(self) -> bool:
        return self._job is not None

    def begin(self, meta: SnapshotMeta, chunks: Iterator[bytes]) -> None:
        """Write the state behind `chunks` as the snapshot `meta`."""
        if self.busy:
            return
        self._started_at = self._environment.now()
        self._chunks = chunks
        self._job = job = SnapshotJob(self._environment, BACKGROUND, self._snapshots.begin(meta))
        self._environment.call_soon(partial(self._encode, job))

    def trim(self, position: int) -> None:
        """Drop the log before `position`, at once or when its snapshot is there.

        A replica that was still writing another snapshot at the mark of `position` has none there. It trims to its
        previous snapshot instead.
        """
        self._trim_to = max(self._trim_to, position)
        self._maybe_trim()

    def trimmed(self, base: SnapshotMeta) -> None:
        """Note that the log now begins behind `base`: have files removed, and notify the engine and the hooks."""
        self._remover.tick()
        self._engine.trimmed(base.last_index, base.last_term)
        for hook in self.on_trimmed:
            hook(base.position)

    def abandon(self) -> None:
        """Drop the snapshot being written and the pending trim: the state was replaced, or this replica stops."""
        self._trim_to = -1
        self._drop_job()

    def _drop_job(self) -> None:
        job, self._job, self._chunks = self._job, None, iter(())
        if job is not None:
            job.drop()

    def _encode(self, job: SnapshotJob) -> None:
        """Encode a slice of the state, and have a worker write it."""
        if self._job is not job:
            return
        pieces: list[bytes] = []
        is_complete = True
        deadline = self._environment.now() + SLICE_S
        try:
            with self._encode_holds:
                for chunk in self._chunks:
                    pieces.append(chunk)
                    if self._environment.now() >= deadline:
                        is_complete = False
                        break
        except Exception as error:
            self._driver.fail(error)
            return
        job.write(pieces, partial(self._on_written, job, is_complete))

    def _on_written(self, job: SnapshotJob, is_complete: bool, error: BaseException | None) -> None:
        if error is not None:
            self._on_write_error(error)
        elif is_complete:
            self._commit(job)
        else:
            self._encode(job)

    def _commit(self, job: SnapshotJob) -> None:
        """Make the snapshot durable once the log below it is durable here."""
        if self._job is not job:
            return
        if self._store.durable_position < job.meta.position:
            self._environment.call_later(PAUSE_S, partial(self._commit, job))
            return

        def done(result: SnapshotMeta | BaseException) -> None:
            if isinstance(result, BaseException):
                self._on_write_error(result)
                return
            self._job = None
            self.took_s = self._environment.now() - self._started_at
            self.retry()

        job.run(SnapshotWriter.commit, done)

    def _on_write_error(self, error: BaseException) -> None:
        self._drop_job()
        if not isinstance(error, LogFullError):
            self._driver.fail(error)

    def _maybe_trim(self) -> None:
        base = self._snapshots.at_or_below(self._trim_to)
        if base is None or base.position <= self._store.first_position:
            return
        if self._store.durable_position < base.position:
            # A snapshot from the leader may be above what is durable here. Until then the log begins below it.
            if not self._waits_for_log:
                self._waits_for_log = True
                self._environment.call_later(PAUSE_S, self.retry)
            return
        if base != self._verified_snapshot:
            self._verify(base)
            return
        with self._trim_holds:
            self._store.trim(base.position)
            self._store.leftovers.drop_snapshots(base.position)
            self.trimmed(base)

    def _verify(self, base: SnapshotMeta) -> None:
        """Verify the snapshot before trimming to it: afterwards only this snapshot holds the state before the log."""
        if self._is_verifying:
            return
        self._is_verifying = True

        def done(result: object) -> None:
            self._is_verifying = False
            if isinstance(result, BusyError | TrimmedError):
                self._environment.call_later(PAUSE_S, self.retry)
                return
            if isinstance(result, CorruptionError | StorageError):
                self._snapshots.condemn(base.position)
            elif isinstance(result, BaseException):
                self._driver.fail(result)
                return
            else:
                self._verified_snapshot = base
            self.retry()

        self._environment.run_blocking(BACKGROUND, partial(self._snapshots.verify, base), done)

    def retry(self) -> None:
        """Carry out a due trim, if its snapshot is there by now."""
        self._waits_for_log = False
        try:
            self._maybe_trim()
        except StorageError as error:
            self._driver.fail(error)


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


class Remover:
    """Makes one removal at a time, each after the durable mark was synced."""

    def __init__(self, environment: Environment, store: LogStore, flusher: Flusher, driver: Driver) -> None:
        self._environment = environment
        self._store = store
        self._flusher = flusher
        self._driver = driver
        self._is_running = False

    def tick(self) -> None:
        """Begin a removal that is due.

        Called after a trim, and a few times a second for files that were still in use then.
        """
        if not self._is_running and self._store.leftovers.due:
            self._is_running = True
            self._flusher.run_between_syncs(self._store.sync_mark, self._on_mark_synced)

    def _on_mark_synced(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._driver.fail(result)
        else:
            self._environment.run_blocking(BACKGROUND, self._store.remove_trimmed, self._on_removed)

    def _on_removed(self, result: object) -> None:
        self._is_running = False
        if isinstance(result, BaseException) and not isinstance(result, BusyError):
            self._driver.fail(result)
