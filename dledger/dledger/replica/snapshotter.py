"""Writes snapshots at marked segment starts, and trims the log only behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore, SnapshotWriter
from dledger.types import SnapshotMeta

SLICE_S = 0.005
PAUSE_S = 0.01


class Snapshotter:
    """One snapshot is written at a time; a mark that comes meanwhile is skipped.

    `trimmed(base)` is told the snapshot that the log starts behind after a trim.
    """

    def __init__(
        self,
        environment: Environment,
        store: LogStore,
        snapshots: SnapshotStore,
        *,
        durable_position: Callable[[], int],
        trimmed: Callable[[SnapshotMeta], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._environment = environment
        self._store = store
        self._snapshots = snapshots
        self._durable_position = durable_position
        self._trimmed = trimmed
        self._failed = failed
        self._writer: SnapshotWriter | None = None
        self._chunks: Iterator[bytes] = iter(())
        self._committing: SnapshotWriter | None = None
        self._trim_to = -1
        self._waits_for_log = False
        self._sound: SnapshotMeta | None = None
        """The snapshot that was verified to be trimmed to."""
        self._verifying = False
        self._begun_at = 0.0
        self.full = False
        self.took_s = 0.0
        """How long the last snapshot took to write."""

    @property
    def busy(self) -> bool:
        return self._writer is not None

    def begin(self, meta: SnapshotMeta, chunks: Iterator[bytes]) -> None:
        """Write the state behind `chunks` as the snapshot `meta`."""
        if self.busy:
            return
        try:
            self._writer = writer = self._snapshots.begin(meta)
        except LogFullError:
            self.full = True
            return
        self.full = False
        self._begun_at = self._environment.now()
        self._chunks = chunks
        self._environment.call_soon(partial(self._write, writer))

    def trim(self, position: int) -> None:
        """Drop what lies before `position`, at once or when its snapshot is there.

        A replica that was still writing a snapshot when this one was due has none there: it trims to the one before.
        """
        self._trim_to = max(self._trim_to, position)
        self._maybe_trim()

    def abandon(self) -> None:
        """The state was replaced, or this replica stops: what is being written is of no use, and nothing is trimmed."""
        self._trim_to = -1
        if self._writer is not None:
            if self._committing is not self._writer:  # else a worker has its file
                self._writer.abort()
            self._writer = None

    def _write(self, writer: SnapshotWriter) -> None:
        """A slice of encoding; the last one waits until the log below the snapshot is durable here."""
        if self._writer is not writer:
            return
        deadline = self._environment.now() + SLICE_S
        try:
            for chunk in self._chunks:
                writer.write(chunk)
                if self._environment.now() >= deadline:
                    self._environment.call_soon(partial(self._write, writer))
                    return
        except LogFullError:
            self.full = True
            self.abandon()
            return
        except Exception as error:
            self._failed(error)
            return
        if self._durable_position() < writer.meta.position:
            self._environment.call_later(PAUSE_S, partial(self._write, writer))
            return

        def done(result: object) -> None:
            if self._committing is writer:
                self._committing = None
            if self._writer is not writer:
                writer.abort()
                return
            if isinstance(result, BusyError):
                self._environment.call_later(PAUSE_S, partial(self._write, writer))
                return
            if isinstance(result, LogFullError):
                self.full = True
                self.abandon()
                return
            self._writer = None
            if isinstance(result, BaseException):
                self._failed(result)
                return
            self.took_s = self._environment.now() - self._begun_at
            self.retry()

        self._committing = writer
        self._environment.run_blocking(BACKGROUND, writer.commit, done)

    def _maybe_trim(self) -> None:
        base = self._snapshots.at_or_below(self._trim_to)
        if base is None or base.position <= self._store.first_position:
            return
        if self._durable_position() < base.position:
            # A snapshot that came from the leader may stand above what is durable here: the log still begins below.
            if not self._waits_for_log:
                self._waits_for_log = True
                self._environment.call_later(PAUSE_S, self.retry)
            return
        if base != self._sound:
            self._verify(base)
            return
        self._store.trim(base.position)
        for meta in self._snapshots.list():
            if meta.position < base.position:
                self._snapshots.delete(meta.position)
        self._trimmed(base)

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
                self._failed(result)
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
            self._failed(error)
