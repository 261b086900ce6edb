"""The log's entries on disk: append, sync, read, truncate, trim.

Threads: the driver calls from its event loop; `SyncTicket.run` and `sync_mark` belong on its flush thread,
`prepare_ahead`, `scrub_step` and snapshot writing on a worker.  `read`, `read_entries`, `meta`, `term_at` and
`position_at` may be called on any thread.  `StorageError` is fatal: the log must then not be used any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dledger.errors import CorruptionError, LogFullError, StorageError, TooLargeError, TrimmedError
from dledger.format import BLANK_BYTES, blank
from dledger.invariants import invariant, known
from dledger.store.commit import SavedCommit
from dledger.store.damage import CorruptRange, Damage
from dledger.store.disk import FULL, Buffer, Disk
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import IndexFiles
from dledger.store.leftovers import Leftovers
from dledger.store.mark import DurableMark, MarkValue
from dledger.store.reader import LogReader, Pin, SegmentInfo
from dledger.store.recovered import Recovered, Recovery
from dledger.store.recovery import recover
from dledger.store.repair import Repaired, Scrubber, Spool, repair
from dledger.store.reset import pending_reset, perform_reset
from dledger.store.rewriting import Cut, LogFiles
from dledger.store.scan import Cursor
from dledger.store.segments import DIRECTORY, Segment, SegmentTable, list_positions
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import RESERVE_STEP_BYTES, Need, Space, kept_through_a_start
from dledger.store.sync import SyncTicket
from dledger.store.void import drop_void_snapshots
from dledger.store.window import RecentWindow, TermTable
from dledger.term_runs import TermRuns
from dledger.types import EntryMeta, SnapshotMeta

__all__ = ["LogStore", "Pin", "SegmentInfo"]

RESERVE_BYTES = 64 << 20
"""Kept back for no-ops, membership entries and trims when the disk is full; at most a quarter of a segment."""
RESERVE_UNITS = 1024
"""Index units kept back for them."""
ROOM_BYTES = 4 << 20
"""A log without so much space more counts as full before it is, so that a leader hears of it in time."""

INDEX_BATCH_ENTRIES = 1024
"""Index units that memory holds back before they are written."""


class LogStore(LogReader):
    """The log of one node directory.  Positions are log positions in bytes; entries are named by index.

    `end_position` is where the last entry ends, `durable` the index up to which entries are on stable storage,
    `generation` counts truncations and resets since the log was opened.
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
    ) -> None:
        self.segment_bytes = segment_bytes
        self.snapshots = snapshots
        self._disk = disk
        self._reserve_bytes = min(reserve_bytes, segment_bytes // 4)
        self._index = index
        self._mark = mark
        self._commit = commit
        self._space = Space(disk, index, segment_bytes)
        self.leftovers = Leftovers(disk, index, self._space, snapshots)
        self._failed = False
        self._unsettled = False
        self._opened: Sequence[Segment] = ()
        """Of a log that was replaced, which nobody has taken yet."""
        self.files = LogFiles(disk, segment_bytes, index, self._space, snapshots, mark, commit, self.leftovers)
        self.generation = mark.value.generation
        self._settle_space(recovered)
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
        self._recent = RecentWindow(found.last_index + 1, recovered.recent)
        self._terms = TermTable(list(found.term_runs))
        self._damage = Damage(found.corrupt_ranges, self.snapshots.positions)
        self._scrubber = Scrubber(self._table, self._index, self._damage, self.snapshots)
        self._unindexed: list[EntryMeta] = []
        self._indexing: Sequence[EntryMeta] = ()
        """Those whose units a sync under way writes."""
        self._directories_dirty = False

    def _settle_space(self, recovered: Recovered) -> None:
        """Reserve the space of a recovered log."""
        found, last = recovered.recovery, recovered.segments[-1]
        # Recovery cut off what was reserved, or filled, behind the end of the log, or erased it.
        written = found.end_position - last.start
        self._space.keep_next(last.start + self.segment_bytes)
        self._space.start_segment(last, written, written)
        self._keep_reserve(last, found.last_index, found.end_position)

    @staticmethod
    def open(
        disk: Disk, *, segment_bytes: int, snapshots: SnapshotStore, reserve_bytes: int = RESERVE_BYTES
    ) -> tuple[LogStore, Recovery]:
        """Recover the log of a directory, or begin one.  When it returns, all that it holds is durable.

        Raises `IdentityError` (other segment size), `CorruptionError` (nothing usable is left), `StorageError`.
        """
        try:
            for directory in (DIRECTORY, INDEX_DIRECTORY, "raft"):
                disk.mkdir(directory)
            # Whoever gave a file its name may have been killed before it synced that: a name is believed once it is
            # on the disk, above all that of the intent to reset the log.
            disk.sync_dir("")
            disk.sync_dir("raft")
            is_new = not disk.exists("raft/mark") and not list_positions(disk, DIRECTORY) and not snapshots.list()
            mark, value = DurableMark.open(disk)
            commit = SavedCommit.open(disk)
            interrupted = pending_reset(disk)
            if interrupted is not None:
                perform_reset(disk, snapshots, mark, commit, interrupted)
                value = mark.value
            index = IndexFiles(disk)
            keep = kept_through_a_start(disk, min(reserve_bytes, segment_bytes // 4), RESERVE_UNITS)
            recovered = recover(disk, index, snapshots, MarkValue() if is_new else value, segment_bytes, keep)
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
            )
            if recovered.trim_interrupted:
                log.leftovers.trimmed((), found.first_position)
                log.leftovers.vouch(log.leftovers.dropped)
                log.leftovers.remove()
        except OSError as error:
            raise StorageError(f"opening the log failed: {error}") from error
        return log, found

    # Space

    def next_position(self, size: int, end: int | None = None) -> int:
        """Where an entry of `size` bytes (header and body) would start behind a log that ends at `end`, by default
        where this one does: in that segment or the next.

        Raises `TooLargeError` if no segment can hold it.
        """
        end = self.end_position if end is None else end
        left = self._segment_end - end if end <= self._segment_end else -end % self.segment_bytes
        if size + BLANK_BYTES <= left or size == left:
            return end
        if size > self.segment_bytes - BLANK_BYTES:
            raise TooLargeError(f"an entry of {size} bytes does not fit a segment of {self.segment_bytes} bytes")
        return end + left

    def claim(self, metas: Sequence[EntryMeta], *, privileged: bool = False) -> bool:
        """Whether space is reserved for entries, which may then be appended: they follow this log, or replace its
        end from the first one on.  Memory only.

        If not, `reserve` what they need and ask again.  Only `privileged` entries (no-ops, membership, trims) may use
        what is kept back.  What was claimed outlives the truncation before them.
        """
        first, last = metas[0], metas[-1]
        more, end = (0, last.end) if privileged else (RESERVE_UNITS, self._with_reserve(last.end))
        current = self._current
        if first.position > current.start and end <= self._segment_end:
            has_units = last.index + 1 + more - current.first_index <= self._index.reserved(current.start)
        else:
            has_units = self._has_units(self._units_across(metas, more, end))
        return has_units and self._space.claim(last.end, end)

    def need_for(self, metas: Sequence[EntryMeta], *, privileged: bool = False) -> Need:
        """What has to be reserved for entries to be claimed."""
        end = metas[-1].end
        more, end = (0, end) if privileged else (RESERVE_UNITS, self._with_reserve(end))
        return Need(end, self._units_across(metas, more, end))

    def need_to(self, end: int, *, privileged: bool = False) -> Need:
        """What has to be reserved for an entry that ends at `end` or before."""
        more = 1 if privileged else 1 + RESERVE_UNITS
        end = end if privileged else self._with_reserve(end)
        current = self._current
        units = [(current.start, self.last_index + 1 + more - current.first_index)]
        if end > self._segment_end:
            units.append((self._segment_end, more))
        return Need(end, tuple(units))

    def _with_reserve(self, end: int) -> int:
        """Up to where what is kept back reaches behind `end`: no further than space can be reserved."""
        return max(end, min(end + self._reserve_bytes, self._segment_end + self.segment_bytes))

    def room_behind(self, end: int) -> Need:
        """What ordinary entries of `ROOM_BYTES` more need, behind those that end at `end`."""
        return self.need_to(end + min(ROOM_BYTES, self.segment_bytes // 4))

    def has(self, need: Need) -> bool:
        """Whether so much is reserved.  Memory only."""
        return need.end <= self._space.reserved_end and self._has_units(need.units)

    def reserve(self, need: Need) -> None:
        """Reserve what entries need.  Blocks; for a worker.

        Raises `LogFullError` if there is no space (a later call tries again), `StorageError`.
        """
        self._space.reserve(need)

    def _has_units(self, units: Sequence[tuple[int, int]]) -> bool:
        return all(self._index.reserved(start) >= count for start, count in units)

    def _units_across(self, metas: Sequence[EntryMeta], more: int, end: int) -> tuple[tuple[int, int], ...]:
        """(start, units) of each segment below `end` that has entries, and `more` for others."""
        size, first = self.segment_bytes, metas[0]
        units: list[tuple[int, int]] = []
        for start in range(first.position - first.position % size, end, size):
            count = sum(start <= meta.position < start + size for meta in metas)
            if start < first.position:
                count += max(0, first.index - self._table.containing(start).first_index)
            units.append((start, count + more))
        return tuple(units)

    def reach_from(self, position: int) -> int:
        """Up to where entries that begin at a position can be appended in one go: to the end of the segment behind the
        one that is written then.

        Space is reserved no further.
        """
        before = max(0, position - 1)  # at a segment's start, the segment before is still the one that is written
        return before - before % self.segment_bytes + 2 * self.segment_bytes

    @property
    def reserve_left(self) -> float:
        """Share of the space kept back that an entry could still use, 0 to 1."""
        return min(1.0, (self._space.reserved_end - self.end_position) / self._reserve_bytes)

    def prepare_ahead(self, budget_bytes: int) -> bool:
        """Reserve space, and fill what comes next of the current segment and the next segment's file, writing at most
        `budget_bytes`.

        Blocks (in steps of at most 1 MiB); for a worker thread.  True if there is more to do.
        """
        end = self.end_position
        reserve_to = end + self._reserve_bytes + RESERVE_STEP_BYTES
        return self._space.prepare(budget_bytes, end, reserve_to)

    def _keep_reserve(self, last: Segment, last_index: int, end: int) -> None:
        """Take the space that is kept back, of a log that ends there."""
        behind, end = last.start + self.segment_bytes, end + self._reserve_bytes
        units = [(last.start, last_index + RESERVE_UNITS + 1 - last.first_index)]
        if end > behind:
            units.append((behind, RESERVE_UNITS))
        with suppress(LogFullError):
            self._space.reserve(Need(end, tuple(units)))

    # Writing

    def append(self, metas: Sequence[EntryMeta], data: Sequence[Buffer] | Buffer) -> None:
        """Write entries behind the last one; `data` is their bytes, in one buffer or several.

        One write per segment touched.  Their space is claimed, and the driver has verified them: a gap is an
        `InvariantError`.  Raises `LogFullError` before anything is written if there is no space, and `StorageError`.
        """
        first, last = metas[0], metas[-1]
        invariant(first.index == self.last_index + 1, "entries are appended in order", index=first.index)
        payload = data if isinstance(data, (bytes, bytearray, memoryview)) else b"".join(data)
        if not self._space.claim(last.end, last.end):
            raise LogFullError(f"no space was reserved for entries up to {last.end}")
        if first.position == self.end_position and last.end <= self._segment_end:
            self._write_run(metas, payload)
        else:
            self._append_across(metas, payload)

    def _write_run(self, metas: Sequence[EntryMeta], data: Buffer) -> None:
        first, last = metas[0], metas[-1]
        invariant(
            first.position == self.end_position and last.end - first.position == len(data),
            "a run is contiguous and its bytes are whole",
            position=first.position,
            end=self.end_position,
            size=len(data),
        )
        current = self._current
        try:
            current.file.pwrite(data, first.position - current.start)
        except OSError as error:
            raise self._failure(f"writing entry {first.index} at {first.position}", error) from error
        self._recent.extend(metas, min(self.durable, self._unwritten_from(first.index) - 1))
        self._unindexed.extend(metas)
        if last.term != self.last_term or not self._terms.runs:
            self._terms.extend(metas, self.last_term)
        self.last_index, self.last_term, self.last_chain = last.index, last.term, last.chain_crc
        self.end_position = last.end

    def _unwritten_from(self, next_index: int) -> int:
        """The first entry whose index unit may not be in its file yet: where it lies only memory tells."""
        held = self._indexing or self._unindexed
        return min(next_index, held[0].index) if held else next_index

    def _append_across(self, metas: Sequence[EntryMeta], data: Buffer) -> None:
        """Append entries that begin in this segment or the next, or reach from one into the next."""
        view = memoryview(data)
        at = 0
        while at < len(metas):
            if metas[at].position >= self._segment_end:
                self._roll(metas[at])
            stop = at
            size = 0
            while stop < len(metas) and metas[stop].position < self._segment_end:
                size += metas[stop].size
                stop += 1
            invariant(stop > at, "an entry follows the log's end", position=metas[at].position, end=self.end_position)
            self._write_run(metas[at:stop], view[:size])
            view = view[size:]
            at = stop

    def _roll(self, first: EntryMeta) -> None:
        """Close the segment with a blank and start the next one."""
        start = self._segment_end
        left = start - self.end_position
        invariant(
            first.position == start and (left == 0 or left >= BLANK_BYTES),
            "a roll leads to the next segment",
            left=left,
        )
        try:
            if left:
                self._current.file.pwrite(blank(left), self.end_position - self._current.start)
        except OSError as error:
            raise self._failure(f"starting the segment at {start}", error) from error
        segment = self._space.roll(first.index)
        self._table.add(segment)
        self._current = segment
        self._segment_end = start + self.segment_bytes
        self.end_position = start
        self._directories_dirty = True

    def cut(self, first_index: int) -> Cut:
        """Drop the entries from `first_index` on from the disk, durably; `take_cut` is then due.

        Beyond the last one only the generation rises.  Blocks; on the flush thread, with no sync under way: nothing is
        appended, filled or synced before `take_cut`.  Raises `StorageError`, and `CorruptionError` where nothing tells
        what the log ends with.
        """
        invariant(first_index >= self.first_index, "only kept entries are truncated", index=first_index)
        self._unsettled = True
        generation = self.generation + 1
        last = self._current
        try:
            drop_void_snapshots(self._disk, self.snapshots, self, first_index)
            end, term, chain = known(self._end_before(first_index), "the entry before is known", index=first_index)
            self._mark.lower(MarkValue(end, first_index - 1, term, chain, generation))
            if first_index <= self.last_index:
                last = self.files.cut_off(self._table, self._last_index_of, first_index, end, self.end_position)
        except OSError as error:
            raise self._failure(f"truncating to index {first_index - 1}", error) from error
        self._keep_reserve(last, first_index - 1, end)
        return Cut(first_index, end, term, chain, generation, last)

    def take_cut(self, cut: Cut) -> None:
        """The log ends where `cut` has ended its files.  Memory only."""
        first_index, end = cut.first_index, cut.end
        self.leftovers.retired(self._table.remove_above(cut.last.start))
        self._current = cut.last
        self._segment_end = cut.last.start + self.segment_bytes
        self.generation = cut.generation
        self.last_index, self.last_term, self.last_chain, self.end_position = first_index - 1, cut.term, cut.chain, end
        self.durable = min(self.durable, self.last_index)
        self._durable_end = min(self._durable_end, end)
        self._recent.truncate(first_index)
        self._damage.keep_below(end)
        self._terms.truncate(first_index)
        self._unindexed = [meta for meta in self._unindexed if meta.index < first_index]
        self._unsettled = False

    # Durability

    def begin_sync(self, *, whole_index: bool = False) -> SyncTicket | None:
        """Capture what was written since the last finished sync; None if that is nothing.  One ticket at a time.

        Index units are written a thousand at a time (all of them at a roll, or with `whole_index`): memory has the
        newest entries, and recovery rebuilds a torn index.
        """
        if self._failed:
            raise StorageError("an earlier write or sync of the log failed")
        invariant(not self._unsettled, "a log that is being rewritten is not synced")
        if self.durable == self.last_index and not (whole_index and self._unindexed):
            return None
        segments = self._table.overlapping(self._durable_end, self.end_position)
        metas: list[EntryMeta] = []
        held = self._unindexed
        behind = bool(held) and held[0].position < segments[0].start  # a truncation ended where a segment ends
        if whole_index or behind or len(segments) > 1 or len(held) >= INDEX_BATCH_ENTRIES:
            metas, self._unindexed = held, []
            self._indexing = metas
        if metas:
            segments = self._table.overlapping(min(self._durable_end, metas[0].position), self.end_position)
        directories, self._directories_dirty = self._directories_dirty, False
        return SyncTicket(
            self._disk,
            self._index,
            segments,
            metas,
            MarkValue(self.end_position, self.last_index, self.last_term, self.last_chain, self.generation),
            self._note_failure,
            directories=directories,
        )

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Count a ticket that ran: its entries are durable, unless the log was truncated since it was captured.

        Advances the durable mark, here and not on the flush thread: two short writes there would each wait for the
        interpreter's lock.  Raises `StorageError`.
        """
        try:
            self._mark.write(ticket.target)
        except OSError as error:
            raise self._failure("writing the durable mark", error) from error
        self._indexing = ()
        if ticket.target.generation == self.generation:
            self.durable = ticket.target.index
            self._durable_end = ticket.target.position

    @property
    def durable_position(self) -> int:
        """Where the last durable entry ends."""
        return self._durable_end

    def sync_mark(self) -> None:
        """Make the durable mark itself durable.  Blocks; every second on the flush thread.  Raises `StorageError`."""
        dropped = self.leftovers.dropped  # what is trimmed from here on may rest on a later mark
        try:
            self._mark.sync()
        except OSError as error:
            raise self._failure("syncing the durable mark", error) from error
        self.leftovers.vouch(dropped)

    def scrub_mark(self) -> int:
        """Write each copy of the durable mark anew that has rotted; returns how many.  Blocks; on the flush thread.

        Raises `StorageError`.
        """
        try:
            return self._mark.scrub()
        except OSError as error:
            raise self._failure("scrubbing the durable mark", error) from error

    def _note_failure(self) -> None:
        self._failed = True

    def _failure(self, what: str, error: OSError) -> StorageError:
        self._failed = True
        return StorageError(f"{what} failed: {error}")

    # Retention

    def trim(self, before_position: int) -> None:
        """Drop whole segments below a segment start, but never above the newest durable snapshot at or below it.

        Snapshots below the first kept segment go, too; that segment's stays.  Memory only: `remove_trimmed` is then
        due, and a crash before it is done leaves the log as it was, or what the next start removes.
        """
        base = self.snapshots.at_or_below(min(before_position, self._mark.value.position))
        if base is None or base.position <= self.first_position or not self._table.segments:
            return
        removed = self._table.remove_below(base.position)
        first = self._table.first
        # The first index rises before the terms go, so that a reader on another thread can tell (see `term_at`).
        self.first_position, self.first_index = first.start, first.first_index
        self.leftovers.trimmed(removed, first.start)
        self._terms.trim(self.first_index)
        self._damage.keep_from(self.first_position)

    def remove_trimmed(self) -> None:
        """Remove the files of what left the log.  Blocks; for a worker, one at a time, after a `sync_mark`.

        Raises `StorageError`.
        """
        try:
            self.leftovers.remove()
        except OSError as error:
            raise self._failure(f"removing what was trimmed below {self.first_position}", error) from error

    def begin_replacing(self, base: SnapshotMeta) -> Callable[[], Recovered]:
        """Give the whole log up for an empty one behind a durable snapshot.  Memory only: its segments are gone.

        What is returned deletes the files and makes the new ones, on the flush thread with no sync under way, and
        survives a crash at any point; `take_replaced` is due with its result.  It raises `StorageError`.
        """
        listed = self.snapshots.at_or_below(base.position)
        invariant(listed == base, "a log is reset to a durable snapshot", base=base, listed=listed)
        self._unsettled = True
        segments = self._table.clear()
        self.leftovers.retired(segments)
        return partial(self._replace, base, segments)

    def _replace(self, base: SnapshotMeta, segments: Sequence[Segment]) -> Recovered:
        try:
            recovered = self.files.replace(base, segments)
            self._opened = recovered.segments
        except OSError as error:
            raise self._failure(f"resetting the log to {base.position}", error) from error
        self._settle_space(recovered)
        return recovered

    def take_replaced(self, replaced: Recovered) -> None:
        """Go on with the log that took the place of the one before.  Memory only."""
        self._opened = []
        self.generation = self._mark.value.generation
        self._adopt(replaced)
        self._unsettled = False

    # Health

    @property
    def corrupt_ranges(self) -> tuple[CorruptRange, ...]:
        """The ranges that are known not to verify, by position."""
        return tuple(known for known in self._damage.ranges if known.end > self.first_position)

    def spool(self, damaged: CorruptRange) -> Spool:
        """A file in which a peer's bytes for a corrupt range are collected for `repair`."""
        return Spool(self._disk, damaged.end - damaged.start)

    def repair(self, position: int, data: bytes | Spool) -> Repaired:
        """Overwrite the corrupt range that starts at `position` with a peer's bytes of exactly that range.

        Blocks.  Returns what is to be learned of them, see `learn_terms`.  Raises `CorruptionError`, and changes
        nothing, unless the bytes verify and join both ends; `LogFullError` where the disk has no space for what was
        lost: then the range stays corrupt, to be repaired anew; `StorageError`.
        """
        damaged = self._damage.at(position)
        if damaged is None or damaged.start != position:
            raise CorruptionError(f"no corrupt range starts at {position}; known are {self._damage.ranges}")
        before = self._cursor_at(position, damaged.first_index)
        behind, last_chain = None, self.last_chain
        if self._damage.holding(damaged.next_index) is not None:  # ranges that touch are two where a snapshot stands
            base = self._snapshot_before(damaged.next_index)
            if base is None:
                raise CorruptionError(
                    f"what joins the corrupt range {damaged} is corrupt as well, and no snapshot tells"
                )
            last_chain = base.chain_crc
        elif damaged.next_index <= self.last_index:
            behind = self.meta(damaged.next_index)
        try:
            repaired = repair(self._table, self._index, damaged, data, before, behind, last_chain)
        except OSError as error:
            if error.errno in FULL:
                raise LogFullError(f"the disk is full: {error}") from error
            raise self._failure(f"repairing {position}", error) from error
        self._damage.remove(damaged)
        return repaired

    def learn_terms(self, healed: CorruptRange, term_runs: TermRuns) -> None:
        """Recovery could only guess the terms of a range that was corrupt."""
        self._terms.learn(term_runs, healed.first_index, healed.next_index, self.last_index)

    def widen(self, damaged: CorruptRange) -> CorruptRange:
        """Count the entries on both sides of a corrupt range as corrupt, too; returns the wider range.

        For a range whose right bytes do not join them: then they are not what they seem, whatever their headers say.
        Blocks.  Raises `CorruptionError` and `TrimmedError` where nothing tells where they lie.
        """
        start, end, first_index, next_index = damaged
        if first_index > self.first_index:
            first_index -= 1
            start = self.position_at(first_index)
        if next_index <= self.durable:
            next_index += 1
            end = self.position_at(next_index)
        self._damage.add(CorruptRange(start, end, first_index, next_index))
        return self._damage.at(damaged.start) or damaged

    def examine(self, first_index: int, last_index: int) -> list[CorruptRange]:
        """Verify durable entries of one segment, at most up to `last_index`; returns what was found corrupt.

        Begins behind an entry before `first_index` that is intact: what made a read fail may begin there.  Blocks; for
        a worker thread, one with `scrub_step`.  Nothing may be truncated meanwhile.
        """
        segment = self._table.of_index(first_index)
        next_index = min(last_index, self.durable, self._last_index_of(segment)) + 1
        follows = next_index <= self.last_index and self._table.of_index(next_index) is segment
        end = self.position_at(next_index) if follows else min(segment.start + self.segment_bytes, self._durable_end)
        return self._scrubber.examine(segment, self._behind_intact(segment, first_index), first_index, end, next_index)

    def _behind_intact(self, segment: Segment, index: int) -> Cursor:
        """A cursor at an entry of a segment or before it, behind one that verifies; else at the segment's start."""
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

    def scrub_step(self, budget_bytes: int, before: int | None = None) -> list[CorruptRange]:
        """Verify about `budget_bytes` more of the closed segments (below `before`); returns what was found corrupt.

        Blocks; for a worker thread.  Round and round: see `scrub_between_rounds`.
        """
        end = self._durable_end
        return self._scrubber.step(budget_bytes, end if before is None else min(before, end))

    @property
    def scrub_between_rounds(self) -> bool:
        """Whether all closed segments have been verified (or none yet) and the next step begins anew."""
        return self._scrubber.between_rounds

    @property
    def saved_commit(self) -> int:
        """The commit index saved last, -1 if none."""
        return self._commit.index

    def save_commit(self, index: int) -> None:
        """Save the commit index for offline checks, lazily: nothing is synced."""
        try:
            self._commit.save(index)
        except OSError as error:
            raise self._failure("saving the commit index", error) from error

    def close(self, *, clean: bool = True) -> None:
        """Close all files.  `clean` syncs first and says in the mark that the stop was an orderly one."""
        if clean and not self._failed and not self._unsettled:
            ticket = self.begin_sync(whole_index=True)
            if ticket is not None:
                ticket.run()
                self.finish_sync(ticket)
            try:
                self._commit.sync()
                self._mark.lower_and_sync(replace(self._mark.value, clean=True))
            except OSError as error:
                raise self._failure("closing the log", error) from error
        for segment in (*self._table.clear(), *self._opened):
            segment.discard()
        self.leftovers.abandon()
        self._space.close()
        self._index.close()
        self._mark.close()
        self._commit.close()
