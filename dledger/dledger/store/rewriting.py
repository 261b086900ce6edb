"""The worker's half of rewriting a log: its end is cut off, or all of it is replaced by the position of a snapshot.

Only files change here.  What memory knows of the log stays as it was until the event loop takes the result, so nothing
may be appended, synced or filled in between; reads of what is cut off fail, and those of a log that is being replaced
find it trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dledger.errors import LogFullError, StorageError
from dledger.store.commit import SavedCommit
from dledger.store.disk import FULL, Disk
from dledger.store.erase import erase
from dledger.store.index import IndexFiles
from dledger.store.leftovers import Leftovers
from dledger.store.mark import DurableMark
from dledger.store.recovered import Recovered
from dledger.store.recovery import recover
from dledger.store.reset import announce_reset, perform_reset, prepare_reset
from dledger.store.segments import DIRECTORY, Segment, SegmentTable, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import Space
from dledger.types import SnapshotMeta


class Cut(NamedTuple):
    """A log whose files end before `first_index`: where, behind what, and in which segment."""

    first_index: int
    end: int
    term: int
    chain: int
    generation: int
    last: Segment


class LogFiles:
    """The files of a log.  Methods block, one at a time, and raise `OSError`."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        index: IndexFiles,
        space: Space,
        snapshots: SnapshotStore,
        mark: DurableMark,
        commit: SavedCommit,
        leftovers: Leftovers,
    ) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._index = index
        self._space = space
        self._snapshots = snapshots
        self._mark = mark
        self._commit = commit
        self._leftovers = leftovers

    def cut_off(
        self, table: SegmentTable, last_index_of: Callable[[Segment], int], first_index: int, end: int, log_end: int
    ) -> Segment:
        """Remove what lies behind `end`, where the entry before `first_index` ends; returns the segment that is last.

        The space of that segment, and of the one behind it, is kept for what comes instead (`dledger.store.erase`).
        """
        last = table.overlapping(end, end)[0]
        units = last_index_of(last) + 1 - last.first_index
        behind = [segment for segment in table.segments if segment.start > last.start]
        if behind:
            self._keep_next(behind[0], last_index_of, log_end)
        for segment in reversed(behind[1:]):
            self._disk.unlink(segment_path(segment.start))
            self._index.delete(segment.start)
        kept = erase(last.file, end - last.start, min(log_end - last.start, self._segment_bytes))
        self._index.erase(last.start, first_index - last.first_index, units)
        if behind:
            self._disk.sync_dir(DIRECTORY)
        if behind or not kept:
            size = last.file.size()
            self._space.start_segment(last, size, size)
        return last

    def _keep_next(self, first: Segment, last_index_of: Callable[[Segment], int], log_end: int) -> None:
        """Keep the space of the first segment that goes, and of its index: it becomes the next one."""
        units = last_index_of(first) + 1 - first.first_index
        self._space.reclaim(first, min(log_end - first.start, self._segment_bytes))
        self._index.erase(first.start, 0, units)

    def prepare_reset(self, base: SnapshotMeta) -> None:
        """Take the space that `replace` by this snapshot needs; changes nothing else, and may run at any time.

        Raises `LogFullError`, `StorageError`.
        """
        try:
            prepare_reset(self._disk, base)
        except OSError as error:
            if error.errno in FULL:
                raise LogFullError(f"no space to reset the log to {base.position}: {error}") from error
            raise StorageError(f"preparing to reset the log to {base.position} failed: {error}") from error

    def replace(self, base: SnapshotMeta, segments: Sequence[Segment]) -> Recovered:
        """Delete the log, whose segments have left the table, and begin one behind a durable snapshot.

        Survives a crash at any point.
        """
        with self._leftovers.removing:
            announce_reset(self._disk, base)
            self._space.close()  # first: another thread may be reserving space in a segment's file
            self._index.close()
            perform_reset(self._disk, self._snapshots, self._mark, self._commit, base)
            for segment in segments:
                segment.close()
            return recover(self._disk, self._index, self._snapshots, self._mark.value, self._segment_bytes)
