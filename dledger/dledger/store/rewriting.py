"""Worker's half of rewriting a log: the log's end is cut off, or all of it is replaced by a snapshot's position.

Only files change here. Memory keeps the former state of the log until the event loop takes the result. So nothing may
be appended, synced or filled in between. Reads of a part that was cut off fail, and reads of a log that is being
replaced find it trimmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dledger.errors import LogFullError, StorageError
from dledger.store.commit import SavedCommit
from dledger.store.disk import LACKING, Disk
from dledger.store.erase import erase
from dledger.store.index import IndexFiles
from dledger.store.leftovers import Leftovers
from dledger.store.mark import DurableMark
from dledger.store.open_files import OpenFiles
from dledger.store.recovered import Recovered
from dledger.store.recovery import recover
from dledger.store.reset import announce_reset, perform_reset, prepare_reset
from dledger.store.segments import DIRECTORY, Segment, SegmentTable, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import Space
from dledger.types import SnapshotMeta


class Cut(NamedTuple):
    """Result of a cut: the files now end before `first_index`, at `end`, in the segment `last`.

    `term` and `chain` are those of the new last entry.
    """

    first_index: int
    end: int
    term: int
    chain: int
    generation: int
    last: Segment


class LogFiles:
    """Files of a log. Methods block, run one at a time, and raise `OSError`."""

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
        open_files: OpenFiles,
    ) -> None:
        self._disk = disk
        self._open_files = open_files
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
        """Remove everything behind `end`, where the entry before `first_index` ends, and return the last segment.

        The space of that segment, and of the next, is kept for the entries to come (`dledger.store.erase`). May be
        called again after an `OSError`.
        """
        last = table.overlapping(end, end)[0]
        last.keep_open()
        units = last_index_of(last) + 1 - last.first_index
        removed = [segment for segment in table.segments if segment.start > last.start]
        if removed:
            self._keep_next(removed[0], last_index_of, log_end)
        for segment in reversed(removed[1:]):
            self._disk.unlink(segment_path(segment.start))
            self._index.delete(segment.start)
        is_space_kept = erase(last.file, end - last.start, min(log_end - last.start, self._segment_bytes))
        self._index.erase(last.start, first_index - last.first_index, units)
        if removed:
            self._disk.sync_dir(DIRECTORY)
        if removed or not is_space_kept:
            size = last.file.size()
            self._space.start_segment(last, size, size)
        return last

    def _keep_next(self, first: Segment, last_index_of: Callable[[Segment], int], log_end: int) -> None:
        """Keep the space of the first removed segment and its index. It becomes the next segment."""
        units = last_index_of(first) + 1 - first.first_index
        self._space.reclaim(first, min(log_end - first.start, self._segment_bytes))
        self._index.erase(first.start, 0, units)

    def prepare_reset(self, base: SnapshotMeta) -> None:
        """Reserve the space that `replace` by this snapshot needs. Changes nothing else, and may run at any time.

        Raises `LogFullError` or `StorageError`.
        """
        try:
            prepare_reset(self._disk, base)
        except OSError as error:
            if error.errno in LACKING:
                raise LogFullError(f"no space to reset the log to {base.position}: {error}") from error
            raise StorageError(f"preparing to reset the log to {base.position} failed: {error}") from error

    def replace(self, base: SnapshotMeta, segments: Sequence[Segment], generation: int) -> Recovered:
        """Delete the log, whose segments have left the table, and begin a log behind a durable snapshot.

        The new log has this generation. Survives a crash at any point, and may be called again after an `OSError`.
        """
        with self._leftovers.removal_lock:
            announce_reset(self._disk, base)
            self._space.close()  # close first: another thread may be reserving space in a segment's file
            self._index.close()
            perform_reset(self._disk, self._snapshots, self._mark, self._commit, base, generation)
            for segment in segments:
                segment.close()
            mark, size = self._mark.value, self._segment_bytes
            return recover(self._disk, self._index, self._snapshots, mark, size, self._open_files)
