"""Files of what left the log: a worker removes them, for to unlink a segment takes as long as the file system wants.

A trim takes segments out of memory at once; their files go later, in this order (`Leftovers.remove`):

1. The durable mark is on the disk: recovery starts at a snapshot at or below the mark, so the mark must be above P
   before anything below P goes.  A sync of the mark vouches for the trims before it began, not for those meanwhile.
2. Index files, durably: one that is there without its segment says that the segment was lost.
3. Segments, oldest first; one of them may become the next one.
4. Snapshots below them.

A crash between two of these steps leaves segments below a snapshot that no older snapshot stands before: the next start
takes them for no log of its own, and removes them.
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
    """What is to be removed: `trimmed`, `retired` and `drop_snapshots` are called on the event loop, `remove` on a
    worker, one at a time; it removes what a sync of the mark has vouched for.
    """

    def __init__(self, disk: Disk, index: IndexFiles, space: Space, snapshots: SnapshotStore) -> None:
        self.removing = Lock()
        """Held while files go.  Who replaces the log takes it first: what is removed then is no longer there."""
        self._disk = disk
        self._index = index
        self._space = space
        self._snapshots = snapshots
        self._segments: list[Segment] = []
        self.dropped = Dropped()
        """What has left memory."""
        self._vouched = self._removed = self.dropped
        self._lock = Lock()

    @property
    def due(self) -> bool:
        """Whether there is something to remove, or to close, that nobody holds any more."""
        return self.dropped != self._removed or any(not segment.held for segment in self._segments)

    def trimmed(self, segments: Iterable[Segment], below: int) -> None:
        """The log begins at position `below`: these segments left it, and nothing that stands there is needed."""
        self.retired(segments)
        self.dropped = self.dropped._replace(segments=max(self.dropped.segments, below))
        self.drop_snapshots(below)

    def retired(self, segments: Iterable[Segment]) -> None:
        """Segments left the log whose files are gone, or go with a trim: they are to be closed."""
        segments = tuple(segments)
        for segment in segments:
            segment.retire()
        with self._lock:
            self._segments = [*self._segments, *segments]

    def drop_snapshots(self, below: int) -> None:
        """Snapshots below a position are of no use any more."""
        for meta in self._snapshots.list():
            if meta.position < below:
                self._snapshots.forget(meta.position)
        self.dropped = self.dropped._replace(snapshots=max(self.dropped.snapshots, below))

    def vouch(self, dropped: Dropped) -> None:
        """The mark is durable that stood when so much had been dropped."""
        self._vouched = dropped

    def remove(self) -> None:
        """Remove the files, and close what nobody holds.  Blocks; for a worker thread.  Raises `OSError`."""
        with self.removing:
            vouched, segments = self._vouched, self._segments
            for start in list_positions(self._disk, INDEX_DIRECTORY):
                if start < vouched.segments:
                    self._index.delete(start)
            self._disk.sync_dir(INDEX_DIRECTORY)
            known = {segment.start: segment for segment in segments}
            for start in list_positions(self._disk, DIRECTORY):
                if start < vouched.segments and not (start in known and self._space.recycle(known[start])):
                    self._disk.unlink(segment_path(start))
            self._disk.sync_dir(DIRECTORY)
            self._snapshots.remove_below(vouched.snapshots)
            closed = {segment for segment in segments if segment.close()}
            with self._lock:
                self._segments = [segment for segment in self._segments if segment not in closed]
            self._removed = vouched

    def abandon(self) -> None:
        """The log is closed: nothing more is removed, and what is held is closed by who holds it last."""
        for segment in self._segments:
            segment.discard()
        self._segments = []
