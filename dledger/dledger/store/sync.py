"""Sync ticket: one data sync, captured on the event loop, run on the flush thread, and reported back on the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.errors import BusyError, StorageError
from dledger.store.disk import OUT_OF_FILES, Disk
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import IndexFiles, encode_units
from dledger.store.mark import MarkValue
from dledger.store.segments import DIRECTORY, Segment
from dledger.types import EntryMeta


class SyncTicket:
    """Entries written when the sync began, and the files that hold them.

    `token` is (generation, last index). Once the ticket ran, the entries up to that index are durable, unless the log
    was truncated since. A sync that spans a roll covers the old segment, its index file, the new segment and the
    directories.
    """

    __slots__ = (
        "_acquired",
        "_directories",
        "_disk",
        "_index",
        "_metas",
        "_on_failure",
        "_segments",
        "_unsynced",
        "target",
        "token",
    )

    def __init__(
        self,
        disk: Disk,
        index: IndexFiles,
        segments: Sequence[Segment],
        metas: Sequence[EntryMeta],
        target: MarkValue,
        on_failure: Callable[[], None],
        *,
        directories: bool,
    ) -> None:
        self.target = target
        self.token = (target.generation, target.index)
        self._disk = disk
        self._index = index
        self._segments = segments
        self._metas = metas
        self._directories = directories
        self._on_failure = on_failure
        self._acquired = self._unsynced = tuple(segments)
        for segment in segments:
            segment.acquire()

    @property
    def descriptors(self) -> Sequence[int] | None:
        """Descriptors whose fdatasync does all that `run` does; None if `run` does more."""
        if self._metas or self._directories or len(self._segments) != 1:
            return None
        descriptor = self._segments[0].file.sync_descriptor
        return None if descriptor is None else (descriptor,)

    def finish(self, error: OSError | None) -> None:
        """Take the result of a sync of the descriptors elsewhere, once, in place of `run`.

        Raises `StorageError`, as `run` does.
        """
        try:
            if error is not None:
                raise self._failure(error) from error
        finally:
            self._release()

    def run(self) -> None:
        """Sync, and write index units if there are any. Blocks; once, on the flush thread.

        Raises `BusyError` if the process may open no more files now. The ticket must then be run again. After a
        `StorageError` nothing written may be relied on, and the replica must stop.
        """
        is_retry_due = False
        try:
            self._sync_data()
            self._write_index()
            for segment in self._segments[:-1]:
                self._index.sync(segment.start)
            if self._directories:
                self._disk.sync_dir(DIRECTORY)
                self._disk.sync_dir(INDEX_DIRECTORY)
        except OSError as error:
            is_retry_due = error.errno in OUT_OF_FILES
            if is_retry_due:
                self._hold_only_last()
                raise BusyError(f"the sync up to index {self.target.index} waits for a file: {error}") from error
            raise self._failure(error) from error
        finally:
            if not is_retry_due:
                self._release()

    def abandon(self) -> None:
        """Release the segments, because the ticket is not run again."""
        self._release()

    def _failure(self, error: OSError) -> StorageError:
        self._on_failure()
        return StorageError(f"syncing the log up to index {self.target.index} failed: {error}")

    def _sync_data(self) -> None:
        while self._unsynced:
            self._unsynced[0].file.datasync()
            self._unsynced = self._unsynced[1:]

    def _hold_only_last(self) -> None:
        """Let the files of the older segments be closed, because everything in them is durable.

        They may be so many that the sync would wait forever, because nothing else frees a file.
        """
        if not self._unsynced:
            older, self._acquired = self._acquired[:-1], self._acquired[-1:]
            for segment in older:
                segment.allow_close()
                segment.release()

    def _release(self) -> None:
        for segment in self._acquired:
            segment.release()

    def _write_index(self) -> None:
        metas = self._metas
        for segment in reversed(self._segments):
            first = next((at for at, meta in enumerate(metas) if meta.position >= segment.start), len(metas))
            if first < len(metas):
                slot = metas[first].index - segment.first_index
                self._index.write(segment, slot, encode_units(metas[first:]))
            metas = metas[:first]
