"""Files that left the log. A worker removes them, because unlinking a segment may take long.

A trim takes segments out of memory at once. Their files are removed later, in this order (`Leftovers.remove`):

1. The durable mark is synced. Recovery starts at a snapshot at or below the mark, so the mark must be above P before
   any file below P is removed. A sync of the mark covers the trims before it began, not later trims.
2. Index files are removed, durably. An index file without its segment means that the segment was lost.
3. Segments are removed, the oldest first. A removed segment may be recycled as the next new one.
4. Snapshots below them are removed.

A crash between two steps leaves segments below a snapshot, without index files and without an older snapshot before
them. The next start sees that they are not part of its log, and removes them. If one has an index file, no trim was
interrupted, and only the older snapshot is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import NamedTuple

from dledger.store.disk import Disk
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import IndexFiles
from dledger.store.segments import DIRECTORY, Segment, list_positions, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import Space


class Dropped(NamedTuple):
    """Positions below which segments, with their index files, and snapshots are of no use."""

    segments: int = 0
    snapshots: int = 0


class Leftovers:
    """Files to be removed. `remove` runs on a worker, one at a time; the other methods are called on the event loop.

    `remove` removes only files that a sync of the mark covers.
    """

    def __init__(self, disk: Disk, index: IndexFiles, space: Space, snapshots: SnapshotStore) -> None:
        self.removal_lock = Lock()
        """Held while files are removed.

        A replacement of the log takes it first: it must not remove the same files meanwhile.
        """
        self._disk = disk
        self._index = index
        self._space = space
        self._snapshots = snapshots
        self._segments: list[Segment] = []
        self.dropped = Dropped()
        """Positions up to which segments and snapshots have left memory."""
        self._removable = self._removed_up_to = self.dropped
        self._lock = Lock()

    @property
    def due(self) -> bool:
        """True if there is something to remove, or to close that nobody holds any more."""
        return self.dropped != self._removed_up_to or any(not segment.held for segment in self._segments)

    def note_trimmed(self, segments: Iterable[Segment], below: int) -> None:
        """Note that the log begins at position `below`: these segments left it, and no file below is needed."""
        self.close_when_unused(segments)
        self.dropped = self.dropped._replace(segments=max(self.dropped.segments, below))
        self.drop_snapshots(below)

    def close_when_unused(self, segments: Iterable[Segment]) -> None:
        """Close segments that left the log once nobody holds them. Their files are gone, or are removed with a trim."""
        segments = tuple(segments)
        for segment in segments:
            segment.retire()
        with self._lock:
            self._segments = [*self._segments, *segments]

    def drop_snapshots(self, below: int) -> None:
        """Note that snapshots below a position are not needed any more."""
        for meta in self._snapshots.list():
            if meta.position < below:
                self._snapshots.forget(meta.position)
        self.dropped = self.dropped._replace(snapshots=max(self.dropped.snapshots, below))

    def note_mark_synced(self, dropped: Dropped) -> None:
        """Note that the durable mark was synced at a time when `dropped` had left memory."""
        self._removable = dropped

    def remove(self) -> None:
        """Remove the files, and close segments that nobody holds. Blocks; for a worker thread. Raises `OSError`."""
        with self.removal_lock:
            removable, segments = self._removable, self._segments
            for start in list_positions(self._disk, INDEX_DIRECTORY):
                if start < removable.segments:
                    self._index.delete(start)
            self._disk.sync_dir(INDEX_DIRECTORY)
            retired_segments = {segment.start: segment for segment in segments}
            for start in list_positions(self._disk, DIRECTORY):
                if start < removable.segments and not (
                    start in retired_segments and self._space.recycle(retired_segments[start])
                ):
                    self._disk.unlink(segment_path(start))
            self._disk.sync_dir(DIRECTORY)
            self._snapshots.remove_below(removable.snapshots)
            closed = {segment for segment in segments if segment.close()}
            with self._lock:
                self._segments = [segment for segment in self._segments if segment not in closed]
            self._removed_up_to = removable

    def abandon(self) -> None:
        """Stop removing files, because the log is closed. A segment still in use is closed by its last reader."""
        for segment in self._segments:
            segment.discard()
        self._segments = []
