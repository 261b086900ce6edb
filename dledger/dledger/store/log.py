"""The log's entries on disk: append, sync, read, truncate, trim.

Threads: the driver calls from its event loop. `SyncTicket.run` and `sync_mark` belong on its flush thread,
`prepare_ahead`, `scrub_step` and snapshot writing on a worker. `read`, `read_entries`, `meta`, `term_at` and
`position_at` may be called on any thread. `StorageError` is fatal: the log must not be used after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from dledger.errors import BusyError, CorruptionError, LogFullError, StorageError, TooLargeError, TrimmedError
from dledger.format import BLANK_BYTES, blank
from dledger.store.commit import SavedCommit
from dledger.store.damage import CorruptRange, Damage
from dledger.store.disk import LACKING, OUT_OF_FILES, Buffer, Disk
from dledger.store.earlier import EarlierPart
from dledger.store.earlier import remove as remove_earlier
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import IndexFiles
from dledger.store.leftovers import Leftovers
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.open_files import OpenFiles, share_of_files
from dledger.store.pages import PageWriter
from dledger.store.reader import LogReader, Pin, SegmentInfo
from dledger.store.recovered import Recovered, Recovery
from dledger.store.recovery import recover
from dledger.store.repair import Repaired, Scrubber, Spool, repair
from dledger.store.reset import pending_reset, perform_reset
from dledger.store.rewriting import Cut, LogFiles
from dledger.store.scan import Cursor
from dledger.store.segments import DIRECTORY, Segment, SegmentTable, list_positions
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import RESERVE_STEP_BYTES, Need, Space, space_kept_at_start
from dledger.store.sync import SyncTicket
from dledger.store.void import drop_void_snapshots
from dledger.store.window import RecentWindow, TermTable
from dledger.term_runs import TermRuns
from dledger.types import EntryMeta, SnapshotMeta
from dledger_base.invariants import invariant, known

__all__ = ["LogStore", "Pin", "SegmentInfo"]

RESERVE_BYTES = 64 << 20
"""Number of bytes kept back for no-ops, membership entries and trims on a full disk; at most a quarter of a segment."""
RESERVE_UNITS = 1024
"""Number of index units kept back for the same entries."""
ROOM_BYTES = 4 << 20
"""Minimum number of bytes of space beyond the log.

With less space the disk already counts as full, so that the leader learns of it in time.
"""

SPARED_SEGMENTS = 3
"""Number of segments for which room must remain beside the bytes that are fetched from peers."""
INDEX_BATCH_ENTRIES = 1024
"""Number of index units that memory holds back before they are written."""


class LogStore(LogReader):
    """The log of one node directory. Positions are log positions in bytes; entries are named by index.

    `end_position` is the position where the last entry ends. `durable` is the index up to which entries are on stable
    storage. `generation` counts truncations and resets since the log was opened.
    """

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int,
        reserve_bytes: int,
        snapshots: SnapshotStore,
        index: IndexFiles,
        mark: DurableMark,
        commit: SavedCommit,
        recovered: Recovered,
        open_files: OpenFiles,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.snapshots = snapshots
        self._disk = disk
        self._reserve_bytes = min(reserve_bytes, segment_bytes // 4)
        self._room_bytes = min(ROOM_BYTES, segment_bytes // 4)
        self._index = index
        self._mark = mark
        self._commit = commit
        self.open_files = open_files
        self._space = Space(disk, index, segment_bytes, open_files)
        self.leftovers = Leftovers(disk, index, self._space, snapshots)
        self._failed = False
        self.on_failed_sync: Callable[[], None] | None = None
        """Called after a sync of segments has failed."""
        self._is_rewriting = False
        self._untaken_segments: Sequence[Segment] = ()
        """Segments of a replacing log that `take_replaced` has not taken yet."""
        self.files = LogFiles(
            disk, segment_bytes, index, self._space, snapshots, mark, commit, self.leftovers, open_files
        )
        self.generation = mark.value.generation
        self._reserve_recovered(recovered)
        self._adopt(recovered)

    def _adopt(self, recovered: Recovered) -> None:
        found = recovered.recovery
        self.first_index = found.first_index
        self.last_index = found.last_index
        self.last_term = found.last_term
        self.last_chain = found.last_chain
        self.first_position = found.first_position
        self.end_position = found.end_position
        self.durable = found.durable_index
        self._durable_end = found.end_position
        self._table = SegmentTable(self.segment_bytes, recovered.segments)
        self._current = self._table.last
        self._segment_end = self._current.start + self.segment_bytes
        self._pages = PageWriter()
        self._kept_open: list[Segment] = [self._current]
        """Segments that are kept open: those that are not durable yet, and last the segment being written."""
        self._recent = RecentWindow(found.last_index + 1, recovered.recent)
        self._terms = TermTable(list(found.term_runs))
        self._damage = Damage(found.corrupt_ranges, self.snapshots.positions)
        self._scrubber = Scrubber(self._table, self._index, self._damage, self.snapshots)
        self._unindexed_metas: list[EntryMeta] = []
        self._metas_being_indexed: Sequence[EntryMeta] = ()
        """Entries whose units the running sync writes."""
        self._directories_dirty = False

    def _reserve_recovered(self, recovered: Recovered) -> None:
        """Reserve the space of a recovered log."""
        found, last = recovered.recovery, recovered.segments[-1]
        last.keep_open()
        # Behind the end of the log, recovery has cut off or erased everything that was reserved or filled.
        written = found.end_position - last.start
        self._space.keep_next(last.start + self.segment_bytes)
        self._space.start_segment(last, written, written)
        self._keep_reserve(last, found.last_index, found.end_position)

    @staticmethod
    def open(
        disk: Disk,
        *,
        segment_bytes: int,
        snapshots: SnapshotStore,
        reserve_bytes: int = RESERVE_BYTES,
        max_open_segments: int | None = None,
    ) -> tuple[LogStore, Recovery]:
        """Recover the log of a directory, or begin one. When this returns, the whole log is durable.

        `max_open_segments` bounds the open files of segments. By default it follows the limit of the process. Raises
        `IdentityError` (other segment size), `CorruptionError` (nothing usable is left) or `StorageError`. Then no file
        stays open, because the directory may be set aside.
        """
        with ExitStack() as opened:
            log, found = LogStore._open(disk, segment_bytes, snapshots, reserve_bytes, max_open_segments, opened)
            opened.pop_all()
        return log, found

    @staticmethod
    def _open(
        disk: Disk,
        segment_bytes: int,
        snapshots: SnapshotStore,
        reserve_bytes: int,
        max_open_segments: int | None,
        opened: ExitStack,
    ) -> tuple[LogStore, Recovery]:
        """Open a log as `open` does. `opened` closes the files if that fails."""
        try:
            for directory in (DIRECTORY, INDEX_DIRECTORY, "raft"):
                disk.mkdir(directory)
            # The process that named a file may have been killed before it synced the name. So sync the names before
            # they are believed, above all that of the intent to reset the log.
            disk.sync_dir("")
            disk.sync_dir("raft")
            is_new = not disk.exists("raft/mark") and not list_positions(disk, DIRECTORY) and not snapshots.list()
            mark, value = DurableMark.open(disk)
            opened.callback(mark.close)
            commit = SavedCommit.open(disk)
            opened.callback(commit.close)
            interrupted = pending_reset(disk)
            if interrupted is not None:
                perform_reset(disk, snapshots, mark, commit, interrupted, mark.value.generation + 1)
                value = mark.value
            index = IndexFiles(disk)
            opened.callback(index.close)
            files = OpenFiles(share_of_files() if max_open_segments is None else max_open_segments)
            opened.callback(files.close_all)
            disk.spare.register("segments", files.spare_one)
            keep = space_kept_at_start(disk, min(reserve_bytes, segment_bytes // 4), RESERVE_UNITS)
            value = MarkValue() if is_new else value
            recovered = recover(disk, index, snapshots, value, segment_bytes, files, keep)
            found = recovered.recovery
            found.saved_commit = min(commit.index, found.last_index)
            mark.lower_and_sync(MarkValue(found.end_position, found.last_index, found.last_term, found.last_chain))
            log = LogStore(
                disk,
                segment_bytes,
                reserve_bytes,
                snapshots,
                index,
                mark,
                commit,
                recovered,
                files,
            )
            if recovered.trim_interrupted:
                log.leftovers.note_trimmed((), found.first_position)
                log.leftovers.note_mark_synced(log.leftovers.dropped)
                log.leftovers.remove()
        except OSError as error:
            raise StorageError(f"opening the log failed: {error}") from error
        return log, found

    # Space

    def next_position(self, size: int, end: int | None = None) -> int:
        """Return the position where an entry of `size` bytes (header and body) would start.

        The log ends at `end`, by default where this log ends. The entry starts in that segment or the next. Raises
        `TooLargeError` if no segment can hold it.
        """
        end = self.end_position if end is None else end
        remaining_bytes = self._segment_end - end if end <= self._segment_end else -end % self.segment_bytes
        if size + BLANK_BYTES <= remaining_bytes or size == remaining_bytes:
            return end
        if size > self.segment_bytes - BLANK_BYTES:
            raise TooLargeError(f"an entry of {size} bytes does not fit a segment of {self.segment_bytes} bytes")
        return end + remaining_bytes

    def claim(self, metas: Sequence[EntryMeta], *, privileged: bool = False) -> bool:
        """Return whether space is reserved for entries, which may then be appended. Memory only.

        The entries follow this log, or replace its end from the first entry on. If the result is False, `reserve` what
        they need and ask again. Only `privileged` entries (no-ops, membership, trims) may use the space kept back. A
        claim stays valid when the log is truncated before the entries are appended.
        """
        first, last = metas[0], metas[-1]
        last_end = last.position + last.size
        extra_units, end = (0, last_end) if privileged else (RESERVE_UNITS, self._with_reserve(last_end))
        current = self._current
        if first.position > current.start and end <= self._segment_end:
            has_units = last.index + 1 + extra_units - current.first_index <= self._index.reserved(current.start)
        else:
            has_units = self._has_units(self._units_across(metas, extra_units, end))
        return has_units and self._space.claim(last_end, end)

    def need_for(self, metas: Sequence[EntryMeta], *, privileged: bool = False) -> Need:
        """Return what must be reserved before entries can be claimed."""
        end = metas[-1].end
        extra_units, end = (0, end) if privileged else (RESERVE_UNITS, self._with_reserve(end))
        return Need(end, self._units_across(metas, extra_units, end))

    def need_to(self, end: int, *, privileged: bool = False) -> Need:
        """Return what must be reserved for an entry that ends at `end` or before."""
        extra_units = 1 if privileged else 1 + RESERVE_UNITS
        end = end if privileged else self._with_reserve(end)
        current = self._current
        units = [(current.start, self.last_index + 1 + extra_units - current.first_index)]
        if end > self._segment_end:
            units.append((self._segment_end, extra_units))
        return Need(end, tuple(units))

    def _with_reserve(self, end: int) -> int:
        """Return the end of the space kept back behind `end`, which is at most as far as space can be reserved."""
        return max(end, min(end + self._reserve_bytes, self._segment_end + self.segment_bytes))

    def room_behind(self, end: int) -> Need:
        """Return the need of `ROOM_BYTES` of further ordinary entries, behind entries that end at `end`."""
        return self.need_to(end + self._room_bytes)

    def has_room_behind(self, end: int) -> bool:
        """Return whether `room_behind(end)` is reserved, as far as `has_to` tells."""
        return self.has_to(end + self._room_bytes)

    def has_to(self, end: int) -> bool:
        """Return whether space is reserved for an ordinary entry that ends at `end`, in this segment. Memory only.

        This is `has(need_to(end))` for the usual entry. False also if that has to be asked.
        """
        current, end = self._current, end + self._reserve_bytes
        return (
            end <= self._segment_end
            and end <= self._space.reserved_end
            and self.last_index + 1 + 1 + RESERVE_UNITS - current.first_index <= self._index.reserved(current.start)
        )

    def has(self, need: Need) -> bool:
        """Return whether so much is reserved. Memory only."""
        return need.end <= self._space.reserved_end and self._has_units(need.units)

    def reserve(self, need: Need) -> None:
        """Reserve the space that entries need. Blocks; for a worker.

        Raises `LogFullError` if there is no space (a later call tries again), or `StorageError`.
        """
        self._space.reserve(need)

    def _has_units(self, units: Sequence[tuple[int, int]]) -> bool:
        for start, count in units:  # noqa: SIM110 - `all` would cost a generator for each entry
            if self._index.reserved(start) < count:
                return False
        return True

    def _units_across(self, metas: Sequence[EntryMeta], extra_units: int, end: int) -> tuple[tuple[int, int], ...]:
        """Return (start, units) for each segment below `end`: the units of its entries, and `extra_units` more."""
        size, first = self.segment_bytes, metas[0]
        units: list[tuple[int, int]] = []
        for start in range(first.position - first.position % size, end, size):
            count = sum(start <= meta.position < start + size for meta in metas)
            if start < first.position:
                count += max(0, first.index - self._table.containing(start).first_index)
            units.append((start, count + extra_units))
        return tuple(units)

    def reach_from(self, position: int) -> int:
        """Return the position up to which entries that begin at `position` can be appended in one go.

        That is the end of the segment after the one that is being written then, because space is reserved no further.
        """
        before = max(0, position - 1)  # at a segment's start, the previous segment is still being written
        return before - before % self.segment_bytes + 2 * self.segment_bytes

    @property
    def reserve_left(self) -> float:
        """Share of the reserve that is left, 0 to 1."""
        return min(1.0, (self._space.reserved_end - self.end_position) / self._reserve_bytes)

    def prepare_ahead(self, budget_bytes: int) -> bool:
        """Reserve space, and fill the coming bytes of this segment and the next with at most `budget_bytes`.

        Blocks (in steps of at most 1 MiB); for a worker thread. Returns True if there is more to do.
        """
        end = self.end_position
        reserve_to = end + self._reserve_bytes + RESERVE_STEP_BYTES
        return self._space.prepare(budget_bytes, end, reserve_to)

    def _keep_reserve(self, last: Segment, last_index: int, end: int) -> None:
        """Reserve the space that is kept back, for a log that ends at `end`."""
        next_start, end = last.start + self.segment_bytes, end + self._reserve_bytes
        units = [(last.start, last_index + RESERVE_UNITS + 1 - last.first_index)]
        if end > next_start:
            units.append((next_start, RESERVE_UNITS))
        with suppress(LogFullError):
            self._space.reserve(Need(end, tuple(units)))

    # Writing

    def append(self, metas: Sequence[EntryMeta], data: Sequence[Buffer] | Buffer) -> None:
        """Write entries behind the last one; `data` holds their bytes, in one buffer or several.

        Makes one write per segment touched. The space must be claimed, and the driver must have verified the entries: a
        gap is an `InvariantError`. Raises `LogFullError` before anything is written if there is no space, or
        `StorageError`.
        """
        first, last = metas[0], metas[-1]
        end = last.position + last.size
        invariant(first.index == self.last_index + 1, "entries are appended in order", index=first.index)
        payload = data if isinstance(data, (bytes, bytearray, memoryview)) else b"".join(data)
        if not self._space.claim(end, end):
            raise LogFullError(f"no space was reserved for entries up to {end}")
        if first.position == self.end_position and end <= self._segment_end:
            self._write_run(metas, payload)
        else:
            self._append_across(metas, payload)

    def _write_run(self, metas: Sequence[EntryMeta], data: Buffer) -> None:
        first, last = metas[0], metas[-1]
        end = last.position + last.size
        invariant(
            first.position == self.end_position and end - first.position == len(data),
            "a run is contiguous and its bytes are whole",
            position=first.position,
            end=self.end_position,
            size=len(data),
        )
        try:
            self._write(data, first.position)
        except OSError as error:
            raise self._failure(f"writing entry {first.index} at {first.position}", error) from error
        self._recent.extend(metas, min(self.durable, self._first_unindexed(first.index) - 1))
        self._unindexed_metas.extend(metas)
        if last.term != self.last_term or not self._terms.runs:
            self._terms.extend(metas, self.last_term)
        self.last_index, self.last_term, self.last_chain = last.index, last.term, last.chain_crc
        self.end_position = end

    def _write(self, data: Buffer, position: int) -> None:
        start = self._current.start
        reserved = min(self._space.reserved_end, self._segment_end)
        self._pages.write(self._current.file, data, position - start, reserved - start)

    def _first_unindexed(self, next_index: int) -> int:
        """Return the first entry whose index unit may not be in its file yet.

        Only memory knows the positions from there on.
        """
        unindexed = self._metas_being_indexed or self._unindexed_metas
        return min(next_index, unindexed[0].index) if unindexed else next_index

    def _append_across(self, metas: Sequence[EntryMeta], data: Buffer) -> None:
        """Append entries that begin in this segment or the next, or span both."""
        view = memoryview(data)
        first = 0
        while first < len(metas):
            if metas[first].position >= self._segment_end:
                self._roll(metas[first])
            stop = first
            size = 0
            while stop < len(metas) and metas[stop].position < self._segment_end:
                size += metas[stop].size
                stop += 1
            invariant(
                stop > first, "an entry follows the log's end", position=metas[first].position, end=self.end_position
            )
            self._write_run(metas[first:stop], view[:size])
            view = view[size:]
            first = stop

    def _roll(self, first: EntryMeta) -> None:
        """End the segment with a blank and start the next one."""
        start = self._segment_end
        remaining_bytes = start - self.end_position
        invariant(
            first.position == start and (remaining_bytes == 0 or remaining_bytes >= BLANK_BYTES),
            "a roll leads to the next segment",
            left=remaining_bytes,
        )
        try:
            if remaining_bytes:
                self._write(blank(remaining_bytes), self.end_position)
        except OSError as error:
            raise self._failure(f"starting the segment at {start}", error) from error
        segment = self._space.roll(first.index)
        self._table.add(segment)
        self._kept_open.append(segment)
        self._current = segment
        self._segment_end = start + self.segment_bytes
        self.end_position = start
        self._directories_dirty = True

    def cut(self, first_index: int) -> Cut:
        """Drop the entries from `first_index` on from the disk, durably. `take_cut` is due then.

        If `first_index` is beyond the last entry, only the generation rises. Blocks; for the flush thread, while no
        sync is under way. Nothing may be appended, filled or synced before `take_cut`. Raises `StorageError`,
        `CorruptionError` if the entry before `first_index` cannot be determined, or `BusyError` if the process may open
        no more files now. The cut must then be repeated.
        """
        invariant(first_index >= self.first_index, "only kept entries are truncated", index=first_index)
        self._is_rewriting = True
        generation = self.generation + 1
        last = self._current
        try:
            drop_void_snapshots(self._disk, self.snapshots, self, first_index)
            end, term, chain = known(self._end_before(first_index), "the entry before is known", index=first_index)
            self._mark.lower(MarkValue(end, first_index - 1, term, chain, generation))
            if first_index <= self.last_index:
                last = self.files.cut_off(self._table, self._last_index_of, first_index, end, self.end_position)
        except OSError as error:
            raise self._repeatable(f"truncating to index {first_index - 1}", error) from error
        self._keep_reserve(last, first_index - 1, end)
        return Cut(first_index, end, term, chain, generation, last)

    def take_cut(self, cut: Cut) -> None:
        """End the log where `cut` has ended its files. Memory only."""
        first_index, end = cut.first_index, cut.end
        self._kept_open = [*(segment for segment in self._kept_open if segment.start < cut.last.start), cut.last]
        self.leftovers.close_when_unused(self._table.remove_above(cut.last.start))
        self._current = cut.last
        self._segment_end = cut.last.start + self.segment_bytes
        self._pages.forget()
        self.generation = cut.generation
        self.last_index, self.last_term, self.last_chain, self.end_position = first_index - 1, cut.term, cut.chain, end
        self.durable = min(self.durable, self.last_index)
        self._durable_end = min(self._durable_end, end)
        self._recent.truncate(first_index)
        self._damage.keep_below(end)
        self._terms.truncate(first_index)
        self._unindexed_metas = [meta for meta in self._unindexed_metas if meta.index < first_index]
        self._is_rewriting = False

    # Durability

    def begin_sync(self, *, whole_index: bool = False) -> SyncTicket | None:
        """Capture what was written since the last finished sync; None if that is nothing. One ticket at a time.

        Index units are written a thousand at a time, or all of them at a roll and with `whole_index`. They may lag
        because memory has the newest entries and recovery rebuilds a torn index.
        """
        if self._failed:
            raise StorageError("an earlier write or sync of the log failed")
        invariant(not self._is_rewriting, "a log that is being rewritten is not synced")
        if self.durable == self.last_index and not (whole_index and self._unindexed_metas):
            return None
        segments = self._table.overlapping(self._durable_end, self.end_position)
        metas: list[EntryMeta] = []
        unindexed = self._unindexed_metas
        # a truncation ended exactly at the end of a segment
        starts_earlier = bool(unindexed) and unindexed[0].position < segments[0].start
        if whole_index or starts_earlier or len(segments) > 1 or len(unindexed) >= INDEX_BATCH_ENTRIES:
            metas, self._unindexed_metas = unindexed, []
            self._metas_being_indexed = metas
        if metas:
            segments = self._table.overlapping(min(self._durable_end, metas[0].position), self.end_position)
        directories, self._directories_dirty = self._directories_dirty, False
        return SyncTicket(
            self._disk,
            self._index,
            segments,
            metas,
            MarkValue(self.end_position, self.last_index, self.last_term, self.last_chain, self.generation),
            self._note_failed_sync,
            directories=directories,
        )

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Take the result of a ticket that ran.

        Its entries are durable, unless the log was truncated since its capture.

        Advances the durable mark here and not on the flush thread, where two short writes would each wait for the
        interpreter's lock. Raises `StorageError`.
        """
        try:
            self._mark.write(ticket.target)
        except OSError as error:
            raise self._failure("writing the durable mark", error) from error
        self._metas_being_indexed = ()
        if ticket.target.generation == self.generation:
            self.durable = ticket.target.index
            self._durable_end = ticket.target.position
            if len(self._kept_open) > 1:
                self._release_finished()

    def _release_finished(self) -> None:
        """Let segments be closed that are fully written, synced and indexed."""
        end = min(self._durable_end, self._unindexed_metas[0].position) if self._unindexed_metas else self._durable_end
        for segment in self._kept_open[:-1]:
            if segment.start + self.segment_bytes <= end:
                self._kept_open.remove(segment)
                segment.allow_close()

    @property
    def durable_position(self) -> int:
        """Position where the last durable entry ends."""
        return self._durable_end

    def sync_mark(self) -> None:
        """Sync the durable mark itself. Blocks; every second on the flush thread. Raises `StorageError`."""
        dropped = self.leftovers.dropped  # later trims may rest on a later mark
        try:
            self._mark.sync()
        except OSError as error:
            raise self._failure("syncing the durable mark", error) from error
        self.leftovers.note_mark_synced(dropped)

    def scrub_mark(self) -> int:
        """Write each rotten copy of the durable mark anew; returns the number of rotten copies.

        Blocks; on the flush thread. Raises `StorageError`.
        """
        try:
            return self._mark.scrub()
        except OSError as error:
            raise self._failure("scrubbing the durable mark", error) from error

    def _note_failed_sync(self) -> None:
        self._failed = True
        if self.on_failed_sync is not None:
            self.on_failed_sync()

    def _failure(self, action: str, error: OSError) -> StorageError:
        self._failed = True
        return StorageError(f"{action} failed: {error}")

    def _repeatable(self, action: str, error: OSError) -> BusyError | StorageError:
        """Return the error of an action that can be repeated as a whole, once the process may open a file again."""
        if error.errno in OUT_OF_FILES:
            return BusyError(f"{action} waits for a file: {error}")
        self._note_failed_sync()
        return self._failure(action, error)

    # Retention

    def trim(self, before_position: int) -> None:
        """Drop the segments below the newest snapshot that is at or below `before_position` and the durable mark.

        Snapshots below the first kept segment are dropped as well; the snapshot of that segment stays. Memory only:
        `remove_trimmed` is due then. A crash before that leaves the log as it was, or files that the next start
        removes.
        """
        base = self.snapshots.at_or_below(min(before_position, self._mark.value.position))
        if base is None or base.position <= self.first_position or not self._table.segments:
            return
        removed = self._table.remove_below(base.position)
        first = self._table.first
        # The first index rises before the terms are dropped, so that a reader on another thread notices (see
        # `term_at`).
        self.first_position, self.first_index = first.start, first.first_index
        self.leftovers.note_trimmed(removed, first.start)
        self._terms.trim(self.first_index)
        self._damage.keep_from(self.first_position)

    def remove_trimmed(self) -> None:
        """Remove the files that left the log. Blocks; for a worker, one at a time, after a `sync_mark`.

        Raises `BusyError` if the process may open no more files now, or `StorageError`.
        """
        try:
            self.leftovers.remove()
        except OSError as error:
            raise self._repeatable(f"removing the segments trimmed below {self.first_position}", error) from error

    def earlier_part(self, incarnation: str, first: int) -> EarlierPart:
        """Open the collected part of the log, from position `first` to where this log begins. Blocks.

        Raises `LogFullError` if it would take space that this log needs.
        """
        part = EarlierPart.resumed_or_begun(self._disk, self.segment_bytes, incarnation, first, self.first_position)
        self.require_room_beside(part.plan.end - part.plan.position)
        return part

    def require_room_beside(self, size: int) -> None:
        """Raise `LogFullError` where a copy of `size` bytes would take space that this log needs. Blocks."""
        free, _ = self._disk.usage(DIRECTORY)
        if free < size + SPARED_SEGMENTS * self.segment_bytes:
            raise LogFullError(f"{size} bytes are to be fetched, and {free} are free")

    def drop_earlier(self) -> None:
        """Remove the collected earlier part. Blocks."""
        remove_earlier(self._disk)

    def begin_replacing(self, base: SnapshotMeta) -> Callable[[], Recovered]:
        """Begin to replace the whole log with an empty one behind a durable snapshot.

        Memory only: the segments leave the table.

        Returns the work that deletes the files and makes the new ones. It runs on the flush thread with no sync under
        way, and survives a crash at any point. `take_replaced` is due with its result. It raises `StorageError`, or
        `BusyError` if the process may open no more files now. It must then be repeated.
        """
        listed = self.snapshots.at_or_below(base.position)
        invariant(listed == base, "a log is reset to a durable snapshot", base=base, listed=listed)
        self._is_rewriting = True
        segments = self._table.clear()
        self.leftovers.close_when_unused(segments)
        return partial(self._replace, base, segments)

    def _replace(self, base: SnapshotMeta, segments: Sequence[Segment]) -> Recovered:
        try:
            recovered = self.files.replace(base, segments, self.generation + 1)
            self._untaken_segments = recovered.segments
        except OSError as error:
            raise self._repeatable(f"resetting the log to {base.position}", error) from error
        self._reserve_recovered(recovered)
        return recovered

    def take_replaced(self, replaced: Recovered) -> None:
        """Continue with the log that replaced the former one. Memory only."""
        self._untaken_segments = []
        self.generation = self._mark.value.generation
        self._adopt(replaced)
        self._is_rewriting = False

    # Health

    @property
    def corrupt_ranges(self) -> tuple[CorruptRange, ...]:
        """Ranges that are known not to verify, by position."""
        return tuple(known for known in self._damage.ranges if known.end > self.first_position)

    def spool(self, damaged: CorruptRange) -> Spool:
        """Return a file in which a peer's bytes for a corrupt range are collected for `repair`."""
        return Spool(self._disk, damaged.end - damaged.start)

    def repair(self, position: int, data: bytes | Spool) -> Repaired:
        """Overwrite the corrupt range that starts at `position` with a peer's bytes of exactly that range. Blocks.

        Returns what the range held; see `learn_terms`. Raises `CorruptionError`, and changes nothing, unless the bytes
        verify and join both ends. Raises `LogFullError` if the disk has no space for lost blocks: the range then stays
        corrupt, to be repaired later. Raises `StorageError`.
        """
        damaged = self._damage.range_at(position)
        if damaged is None or damaged.start != position:
            raise CorruptionError(f"no corrupt range starts at {position}; known are {self._damage.ranges}")
        cursor = self._cursor_at(position, damaged.first_index)
        next_entry, last_chain = None, self.last_chain
        # touching ranges stay apart where a snapshot is between them
        if self._damage.range_of_entry(damaged.next_index) is not None:
            base = self._snapshot_before(damaged.next_index)
            if base is None:
                raise CorruptionError(
                    f"the entry behind the corrupt range {damaged} is corrupt, too, and no snapshot has its chain crc"
                )
            last_chain = base.chain_crc
        elif damaged.next_index <= self.last_index:
            next_entry = self.meta(damaged.next_index)
        try:
            repaired = repair(self._table, self._index, damaged, data, cursor, next_entry, last_chain)
        except OSError as error:
            if error.errno in LACKING:
                raise LogFullError(f"the disk is full: {error}") from error
            self._note_failed_sync()
            raise self._failure(f"repairing {position}", error) from error
        self._damage.remove(damaged)
        return repaired

    def learn_terms(self, healed: CorruptRange, term_runs: TermRuns) -> None:
        """Learn the terms of a healed range, which recovery could only guess."""
        self._terms.learn(term_runs, healed.first_index, healed.next_index, self.last_index)

    def widen(self, damaged: CorruptRange) -> CorruptRange:
        """Count the entries on both sides of a corrupt range as corrupt, too, and return the wider range.

        For a range whose correct bytes do not join its ends: then the entries at the ends are corrupt, though their
        headers verify. Blocks. Raises `CorruptionError` or `TrimmedError` if their positions are not known.
        """
        start, end, first_index, next_index = damaged
        if first_index > self.first_index:
            first_index -= 1
            start = self.position_at(first_index)
        if next_index <= self.durable:
            next_index += 1
            end = self.position_at(next_index)
        self._damage.add(CorruptRange(start, end, first_index, next_index))
        return self._damage.range_at(damaged.start) or damaged

    def examine(self, first_index: int, last_index: int) -> list[CorruptRange]:
        """Verify durable entries of one segment, at most up to `last_index`, and return the corrupt ranges.

        Verification begins behind an intact entry before `first_index`, because the fault of a failed read may begin
        there. Blocks; for a worker thread, the same as `scrub_step`. Nothing may be truncated meanwhile.
        """
        segment = self._table.of_index(first_index)
        next_index = min(last_index, self.durable, self._last_index_of(segment)) + 1
        is_next_here = next_index <= self.last_index and self._table.of_index(next_index) is segment
        end = (
            self.position_at(next_index) if is_next_here else min(segment.start + self.segment_bytes, self._durable_end)
        )
        return self._scrubber.examine(
            segment, self._cursor_behind_intact(segment, first_index), first_index, end, next_index
        )

    def _cursor_behind_intact(self, segment: Segment, index: int) -> Cursor:
        """Return a cursor at an entry or earlier in its segment: behind an entry that verifies, or at the start."""
        step = 1
        while True:
            try:
                self.read_entries(index - 1, 1, verify=True)
                return self._cursor_at(self.position_at(index), index)
            except (CorruptionError, TrimmedError):
                if index == segment.first_index:
                    return self._scrubber.start_of(segment)
            index = max(segment.first_index, index - step)
            step *= 2

    def scrub_step(self, budget_bytes: int, end_position: int | None = None) -> list[CorruptRange]:
        """Verify about `budget_bytes` more of the closed segments (below `end_position`), and return corrupt ranges.

        Blocks; for a worker thread. Rounds repeat; see `scrub_between_rounds`. Raises `BusyError` if space or files are
        lacking to correct an index file.
        """
        end = self._durable_end
        try:
            return self._scrubber.step(budget_bytes, end if end_position is None else min(end_position, end))
        except OSError as error:
            if error.errno in LACKING:
                raise BusyError(f"the scrub of the log goes on later: {error}") from error
            raise

    @property
    def scrub_between_rounds(self) -> bool:
        """True if all closed segments have been verified (or none yet), so that the next step begins anew."""
        return self._scrubber.between_rounds

    @property
    def saved_commit(self) -> int:
        """The saved commit index; -1 if there is none."""
        return self._commit.index

    def save_commit(self, index: int) -> None:
        """Save the commit index for the next start and offline checks, without a sync."""
        try:
            self._commit.save(index)
        except OSError as error:
            raise self._failure("saving the commit index", error) from error

    def close(self, *, clean: bool = True) -> None:
        """Close all files. With `clean`, first sync everything and record an orderly stop in the durable mark."""
        if clean and not self._failed and not self._is_rewriting:
            ticket = self.begin_sync(whole_index=True)
            if ticket is not None:
                try:
                    ticket.run()
                except BusyError:
                    ticket.abandon()
                    raise
                self.finish_sync(ticket)
            try:
                self._commit.sync()
                self._mark.lower_and_sync(replace(self._mark.value, clean=True))
            except OSError as error:
                raise self._failure("closing the log", error) from error
        for segment in (*self._table.clear(), *self._untaken_segments):
            segment.discard()
        self.leftovers.abandon()
        self._space.close()
        self._index.close()
        self._mark.close()
        self._commit.close()
