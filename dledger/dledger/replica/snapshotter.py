"""Writes snapshots at marked segment starts, and trims the log only behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.loop_holds import SNAPSHOT, TRIM
from dledger.replica.driver import Driver
from dledger.replica.removal import Remover
from dledger.replica.snapshot_job import SnapshotJob
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore, SnapshotWriter
from dledger.types import SnapshotMeta

SLICE_S = 0.005
PAUSE_S = 0.01


class Snapshotter:
    """One snapshot is written at a time; a mark that comes meanwhile is skipped."""

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
        self._encoding = environment.holds.part(SNAPSHOT)
        self._trimming = environment.holds.part(TRIM)
        self._store = store
        self._snapshots = snapshots
        self._remover = remover
        self._engine = engine
        self._driver = driver
        self._job: SnapshotJob | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._trim_to = -1
        self._waits_for_log = False
        self._sound: SnapshotMeta | None = None
        """The snapshot that was verified to be trimmed to."""
        self._verifying = False
        self._begun_at = 0.0
        self.on_trimmed: list[Callable[[int], None]] = []
        """Called with the position at which the log begins after a trim."""
        self.took_s = 0.0
        """How long the last snapshot took to write."""

    @property
    def busy(self) -> bool:
        return self._job is not None

    def begin(self, meta: SnapshotMeta, chunks: Iterator[bytes]) -> None:
        """Write the state behind `chunks` as the snapshot `meta`."""
        if self.busy:
            return
        self._begun_at = self._environment.now()
        self._chunks = chunks
        self._job = job = SnapshotJob(self._environment, BACKGROUND, self._snapshots.begin(meta))
        self._environment.call_soon(partial(self._encode, job))

    def trim(self, position: int) -> None:
        """Drop what lies before `position`, at once or when its snapshot is there.

        A replica that was still writing a snapshot when this one was due has none there: it trims to the one before.
        """
        self._trim_to = max(self._trim_to, position)
        self._maybe_trim()

    def trimmed(self, base: SnapshotMeta) -> None:
        """The log begins behind `base` now: have files removed, and tell the engine and whoever wants to know."""
        self._remover.tick()
        self._engine.trimmed(base.last_index, base.last_term)
        for hook in self.on_trimmed:
            hook(base.position)

    def abandon(self) -> None:
        """The state was replaced, or this replica stops: what is being written is of no use, and nothing is trimmed."""
        self._trim_to = -1
        self._give_up()

    def _give_up(self) -> None:
        job, self._job, self._chunks = self._job, None, iter(())
        if job is not None:
            job.drop()

    def _encode(self, job: SnapshotJob) -> None:
        """A slice of encoding, which a worker then writes."""
        if self._job is not job:
            return
        pieces: list[bytes] = []
        whole = True
        deadline = self._environment.now() + SLICE_S
        try:
            with self._encoding:
                for chunk in self._chunks:
                    pieces.append(chunk)
                    if self._environment.now() >= deadline:
                        whole = False
                        break
        except Exception as error:
            self._driver.fail(error)
            return
        job.write(pieces, partial(self._written, job, whole))

    def _written(self, job: SnapshotJob, whole: bool, error: BaseException | None) -> None:
        if error is not None:
            self._not_written(error)
        elif whole:
            self._commit(job)
        else:
            self._encode(job)

    def _commit(self, job: SnapshotJob) -> None:
        """Make it durable once the log below it is durable here."""
        if self._job is not job:
            return
        if self._store.durable_position < job.meta.position:
            self._environment.call_later(PAUSE_S, partial(self._commit, job))
            return

        def done(result: SnapshotMeta | BaseException) -> None:
            if isinstance(result, BaseException):
                self._not_written(result)
                return
            self._job = None
            self.took_s = self._environment.now() - self._begun_at
            self.retry()

        job.run(SnapshotWriter.commit, done)

    def _not_written(self, error: BaseException) -> None:
        self._give_up()
        if not isinstance(error, LogFullError):
            self._driver.fail(error)

    def _maybe_trim(self) -> None:
        base = self._snapshots.at_or_below(self._trim_to)
        if base is None or base.position <= self._store.first_position:
            return
        if self._store.durable_position < base.position:
            # A snapshot that came from the leader may stand above what is durable here: the log still begins below.
            if not self._waits_for_log:
                self._waits_for_log = True
                self._environment.call_later(PAUSE_S, self.retry)
            return
        if base != self._sound:
            self._verify(base)
            return
        with self._trimming:
            self._store.trim(base.position)
            self._store.leftovers.drop_snapshots(base.position)
            self.trimmed(base)

    def _verify(self, base: SnapshotMeta) -> None:
        """It is about to be all that tells the state before the log: one that has rotted is not trimmed to."""
        if self._verifying:
            return
        self._verifying = True

        def done(result: object) -> None:
            self._verifying = False
            if isinstance(result, BusyError | TrimmedError):
                self._environment.call_later(PAUSE_S, self.retry)
                return
            if isinstance(result, CorruptionError | StorageError):
                self._snapshots.condemn(base.position)
            elif isinstance(result, BaseException):
                self._driver.fail(result)
                return
            else:
                self._sound = base
            self.retry()

        self._environment.run_blocking(BACKGROUND, partial(self._snapshots.verify, base), done)

    def retry(self) -> None:
        """Carry out a trim that was due, if its snapshot is there by now."""
        self._waits_for_log = False
        try:
            self._maybe_trim()
        except StorageError as error:
            self._driver.fail(error)
