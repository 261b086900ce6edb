"""One data sync: captured on the event loop, run on the flush thread, reported back on the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.errors import StorageError
from dledger.store.disk import Disk
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import IndexFiles, encode_units
from dledger.store.mark import MarkValue
from dledger.store.segments import DIRECTORY, Segment
from dledger.types import EntryMeta


class SyncTicket:
    """What was written when the sync began, and the files that hold it.

    `token` is (generation, last index): the entries up to that index are durable once it ran, unless the log was
    truncated since.  A sync that spans a roll covers the old segment, its index file, the new segment and the
    directories.
    """

    __slots__ = ("_directories", "_disk", "_index", "_metas", "_on_failure", "_segments", "target", "token")

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
        for segment in segments:
            segment.acquire()

    @property
    def descriptors(self) -> Sequence[int] | None:
        """The descriptor whose fdatasync is all that `run` does; None if it does more."""
        if self._metas or self._directories or len(self._segments) != 1:
            return None
        descriptor = self._segments[0].file.sync_descriptor
        return None if descriptor is None else (descriptor,)

    def ended(self, error: OSError | None) -> None:
        """The descriptors were synced elsewhere, or failed to be; once, in place of `run`.

        Raises `StorageError`, as `run` does.
        """
        try:
            if error is not None:
                raise self._failed(error) from error
        finally:
            self._release()

    def run(self) -> None:
        """Sync, and write index units where there are any.  Blocks; once, on the flush thread.

        Raises `StorageError`; after that nothing written may be relied on, and the replica must stop.
        """
        try:
            for segment in self._segments:
                segment.file.datasync()
            self._write_index()
            for segment in self._segments[:-1]:
                self._index.sync(segment.start)
            if self._directories:
                self._disk.sync_dir(DIRECTORY)
                self._disk.sync_dir(INDEX_DIRECTORY)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            self._release()

    def _failed(self, error: OSError) -> StorageError:
        self._on_failure()
        return StorageError(f"syncing the log up to index {self.target.index} failed: {error}")

    def _release(self) -> None:
        for segment in self._segments:
            segment.release()

    def _write_index(self) -> None:
        metas = self._metas
        for segment in reversed(self._segments):
            first = next((at for at, meta in enumerate(metas) if meta.position >= segment.start), len(metas))
            if first < len(metas):
                slot = metas[first].index - segment.first_index
                self._index.write(segment, slot, encode_units(metas[first:]))
            metas = metas[:first]
