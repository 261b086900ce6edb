"""Recovery: reads the log back after any stop, and makes everything that it found valid durable.

A crash may leave the following, and recovery handles it as described:

1. Entries at or above the durable mark may be torn, missing or out of order. For example, the kernel persisted entry 12
   and not entry 11. The first invalid entry ends the log. Everything behind it is cut off, or erased if its space is to
   be kept, so that it can never come back.
2. Valid entries at or above the mark may be in the page cache only, if an fdatasync had failed. They are rewritten and
   synced, with the directories, before anything relies on them.
3. An invalid or unreadable entry below the mark is corruption, because it was durable once. It stays, is listed in
   `corrupt_ranges`, and the log continues behind it. The entry's own header, the index file, the next segment or the
   mark shows where.
4. Index files may be missing or torn. They are rebuilt from the segments.
5. A reset of the log may have been interrupted. `raft/reset` says so, and the reset is done again.

Verification starts at the newest snapshot at or below the mark. Older segments are not read whole. Their index files
are trusted, and a scrub verifies them later. Segments whose index file is incomplete are scanned. A trim deletes a
segment's index file first. So a segment of which only the index file is left was lost, and is corrupt throughout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import takewhile

from dledger.errors import CorruptionError, IdentityError, MarkContradictedError
from dledger.format import HEADER_BYTES, link
from dledger.store.damage import CorruptRange, join_touching
from dledger.store.disk import Disk, File
from dledger.store.erase import shorten
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import UNIT_BYTES, IndexFiles, IndexUnit, no_membership_entries
from dledger.store.mark import PATH as MARK_PATH
from dledger.store.mark import MarkValue
from dledger.store.open_files import OpenFiles
from dledger.store.recovered import Recovered, Recovery
from dledger.store.scan import BLOCK_BYTES, Collected, Cursor, Fault, header_at, scan_segment
from dledger.store.segments import DIRECTORY, Segment, list_positions, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import NOTHING_KEPT, KeptBack
from dledger.store.unreadable import salvage
from dledger.types import EntryMeta, SnapshotMeta

RECENT_ENTRIES = 65_536
"""Number of newest entries whose metas are in memory after a recovery. Later there may be more (`store.window`)."""


def recover(
    disk: Disk,
    index: IndexFiles,
    snapshots: SnapshotStore,
    mark: MarkValue | None,
    segment_bytes: int,
    files: OpenFiles,
    keep: KeptBack = NOTHING_KEPT,
) -> Recovered:
    """Read, verify and settle the log.

    `mark` None means that no valid mark was found. `files` bounds the number of open segments. `keep` is the space
    behind the end of the log that the files keep, erased, if they have it. All other space is given back.

    Raises `IdentityError` if the segments were written with another segment size, and `CorruptionError` if nothing
    usable is left. Raises `MarkContradictedError` if the log contradicts its mark, and `OSError` if the disk fails.
    """
    return _Recoverer(disk, index, snapshots, mark, segment_bytes, keep, files).run()


class _Recoverer:
    """One recovery. Its fields are the intermediate results of `run`, which calls the other methods in order."""

    def __init__(
        self,
        disk: Disk,
        index: IndexFiles,
        snapshots: SnapshotStore,
        mark: MarkValue | None,
        segment_bytes: int,
        keep: KeptBack,
        files: OpenFiles,
    ) -> None:
        self.disk = disk
        self.files = files
        self.index = index
        self.snapshots = snapshots
        self.mark_valid = mark is not None
        self.mark = mark or MarkValue()
        self.segment_bytes = segment_bytes
        self.keep = keep
        self.files_found = list_positions(disk, DIRECTORY)
        self.starts = self.segments_of_log(self.files_found)
        self.existing = frozenset(self.starts)
        self.indexed = frozenset(list_positions(disk, INDEX_DIRECTORY))
        self.segments: list[Segment] = []
        self.collected = Collected(recent=deque(maxlen=RECENT_ENTRIES))
        self.corrupt: list[CorruptRange] = []
        self.unread: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.trim_interrupted = False

    def run(self) -> Recovered:
        for start in self.files_found:
            if start % self.segment_bytes:
                raise IdentityError(
                    f"{segment_path(start)} cannot be a segment of {self.segment_bytes} bytes: the log was written "
                    "with another segment_bytes; give that one"
                )
        base = self.choose_base()
        cursor = self.starting_cursor(base)
        scanned_from, first_scanned = cursor.position, cursor.index
        self.scan(cursor)
        runs = self.attach_older(scanned_from, first_scanned)
        for run in self.collected.term_runs:
            if not runs or runs[-1][1] != run[1]:
                runs.append(run)
        end = self.end_of_log(cursor)
        self.cut_behind(end)
        self.rewrite(min(self.mark.position, end) if self.mark_valid else scanned_from, end)
        recovery = Recovery(
            base=base,
            term_runs=runs,
            memberships=self.collected.memberships,
            unread=self.unread,
            first_index=self.segments[0].first_index,
            last_index=cursor.index - 1,
            last_term=cursor.term,
            last_chain=cursor.chain or 0,
            first_position=self.segments[0].start,
            end_position=end,
            durable_index=cursor.index - 1,
            corrupt_ranges=join_touching(self.corrupt, self.snapshots.positions()),
            notes=self.notes,
            mark_valid=self.mark_valid,
            clean=self.mark.clean,
            saved_commit=-1,
        )
        return Recovered(self.segments, self.recent_metas(), recovery, self.trim_interrupted)

    def segments_of_log(self, starts: list[int]) -> list[int]:
        """Return the found segments without the file of the next segment.

        That file is made, under its final name, before the next segment has an entry.
        """
        last = starts[-1] if starts else 0
        if last < self.mark.position or not starts or last % self.segment_bytes:
            return starts
        segment = Segment(self.disk, last, 0)
        try:
            return starts if header_at(segment.file, last, last) is not None else starts[:-1]
        finally:
            segment.discard()

    def segment(self, start: int, first_index: int, file: File | None = None) -> Segment:
        """Return a segment of the log whose file may be closed and opened again."""
        segment = Segment(self.disk, start, first_index, file, files=self.files)
        if file is not None:
            self.files.note_opened(segment)
        return segment

    # Where verification starts

    def choose_base(self) -> SnapshotMeta | None:
        """Return the newest snapshot at or below the mark that verifies.

        Snapshots that do not verify are no longer listed.

        The snapshot at the beginning of the log is used even if it is above the mark. If the newest copy of the mark
        rotted, the other copy can be older than the last trim. That trim waited until the log was durable up to its
        snapshot.

        A snapshot that was received to replace this log, and did not replace it, is not used either. The log may
        continue beyond it with entries that no other node has. They must not be taken for corrupt entries of the
        snapshot's log.
        """
        begin = self.files_found[0] if self.files_found else 0
        for meta in reversed(self.snapshots.list()):
            if self.mark_valid and meta.position > self.mark.position and meta.position != begin:
                continue
            if self.is_of_another_log(meta):
                self.notes.append(f"the snapshot at {meta.position} is of another log than this one: not used")
                self.snapshots.forget(meta.position)
                continue
            try:
                self.snapshots.verify(meta)
            except CorruptionError as error:
                self.notes.append(str(error))
                self.snapshots.condemn(meta.position)
                continue
            return meta
        return None

    def is_of_another_log(self, meta: SnapshotMeta) -> bool:
        """Return whether a snapshot inside this log contradicts the mark or the entry at its position."""
        if not self.starts or meta.position <= self.starts[0]:
            return False  # used in any case: nothing else holds the state before this log
        if self.mark_valid and meta.position == self.mark.position:
            return (meta.last_index, meta.chain_crc) != (self.mark.index, self.mark.chain)
        if meta.position not in self.existing:
            return False
        segment = Segment(self.disk, meta.position, 0)
        try:
            first = header_at(segment.file, meta.position, meta.position)
            header = salvage(segment.file, HEADER_BYTES, 0)
        finally:
            segment.discard()
        return first is not None and (
            first.index != meta.last_index + 1 or link(header, 0, meta.chain_crc) != first.chain_crc
        )

    def starting_cursor(self, base: SnapshotMeta | None) -> Cursor:
        if base is not None:
            return Cursor(base.position, base.last_index + 1, base.last_term, base.chain_crc)
        if not self.starts or self.starts[0] == 0:
            return Cursor(0, 0, 0, 0)
        start = self.starts[0]
        first = self.first_entry_of(start)
        if first is None:
            raise CorruptionError(
                f"{segment_path(start)}, the first segment, has no valid first entry, no index and no snapshot"
            )
        return Cursor(start, first.index, 0, None)

    def first_entry_of(self, start: int) -> IndexUnit | None:
        """Return the first entry of a segment, by its header or by the index file."""
        if start in self.existing:
            segment = Segment(self.disk, start, 0)
            try:
                meta = header_at(segment.file, start, start)
            finally:
                segment.discard()
            if meta is not None:
                return IndexUnit(meta.kind, meta.position, meta.size, meta.index, meta.term)
        unit = self.index.read(start, 0)
        return unit if unit is not None and unit.position == start else None

    # The verified part

    def scan(self, cursor: Cursor) -> None:
        """Verify from the cursor to the end of the log, segment by segment. The cursor ends behind the last entry."""
        continues = True
        while continues:
            start = cursor.position - cursor.position % self.segment_bytes
            below_mark = self.mark_valid and start < self.mark.position
            if start not in self.existing and not below_mark and self.segments:
                break
            file = self.disk.open(segment_path(start), create=True)
            segment = self.segment(start, cursor.index, file)
            self.segments.append(segment)
            first_index = cursor.index
            self.collected.units.clear()
            continues = self.scan_one(segment, cursor)
            self.settle_index(segment, first_index)
        if self.mark_valid and cursor.index <= self.mark.index:
            mark = f"{MARK_PATH} says index {self.mark.index} at {self.mark.position}"
            raise MarkContradictedError(f"the log ends at index {cursor.index - 1}, below its durable mark: {mark}")

    def scan_one(self, segment: Segment, cursor: Cursor) -> bool:
        """Verify one segment; False if the log ends in it."""
        end = segment.start + self.segment_bytes
        if self.mark_valid and cursor.position < self.mark.position:
            limit = min(end, self.mark.position)
            while cursor.position < limit:
                fault = scan_segment(segment.file, segment.start, end, cursor, self.collected, stop=limit)
                if fault is not None:
                    self.skip_corruption(segment, cursor, fault)
            if cursor.position == self.mark.position:
                self.check_mark(cursor)
        return cursor.position >= end or (
            scan_segment(segment.file, segment.start, end, cursor, self.collected) is None
        )

    def check_mark(self, cursor: Cursor) -> None:
        if cursor.index != self.mark.index + 1 or cursor.chain not in (self.mark.chain, None):
            raise MarkContradictedError(
                f"the log has index {cursor.index - 1} with chain crc {cursor.chain} at {cursor.position}, its durable "
                f"mark, {MARK_PATH}, says index {self.mark.index} with {self.mark.chain}"
            )
        cursor.chain = self.mark.chain

    # Corruption below the mark

    def skip_corruption(self, segment: Segment, cursor: Cursor, fault: Fault) -> None:
        """Record the range at the cursor that does not verify, and move on to where the log can continue."""
        resume = self.resume_point(segment, cursor, fault)
        corrupt = CorruptRange(cursor.position, resume.position, cursor.index, resume.index)
        self.notes.append(f"{fault.reason} (bytes {corrupt.start} to {corrupt.end} are not served)")
        self.corrupt.append(corrupt)
        if not self.collected.term_runs or self.collected.term_runs[-1][1] != resume.term:
            self.collected.term_runs.append((cursor.index, resume.term))
        # Only intact entries are kept as recent entries, and those must be consecutive.
        self.collected.recent.clear()
        units = self.index.read_raw(segment.start, cursor.index - segment.first_index, resume.index - cursor.index)
        if not no_membership_entries(units, cursor.index, resume.index):
            self.unread.append((cursor.index, resume.index))
        self.collected.units.append(units.ljust((resume.index - cursor.index) * UNIT_BYTES, b"\0"))
        cursor.position, cursor.index, cursor.term, cursor.chain = (
            resume.position,
            resume.index,
            resume.term,
            resume.chain,
        )
        cursor.last_end = resume.position

    def resume_point(self, segment: Segment, cursor: Cursor, fault: Fault) -> Cursor:
        mark, end = self.mark, segment.start + self.segment_bytes
        limit = min(end, mark.position)
        if fault.size and cursor.position + fault.size <= limit:
            return Cursor(cursor.position + fault.size, cursor.index + 1, fault.term, fault.chain)
        unit = self.index.read(segment.start, cursor.index - segment.first_index)
        if (
            unit is not None
            and (unit.position, unit.index) == (cursor.position, cursor.index)
            and unit.end <= limit
            and unit.term >= cursor.term
        ):
            return Cursor(unit.end, cursor.index + 1, unit.term, None)
        if mark.position <= end:
            return Cursor(mark.position, mark.index + 1, mark.term, mark.chain)
        first = self.first_entry_of(end)
        if first is None or not cursor.index <= first.index <= mark.index:
            # It is not known at which index the next segment begins, so that segment counts as corrupt from its start.
            return Cursor(end, cursor.index, cursor.term, None)
        return Cursor(end, first.index, cursor.term, cursor.chain if first.index == cursor.index else None)

    # The trusted part

    def attach_older(self, position: int, next_index: int) -> list[tuple[int, int]]:
        """Put the adjoining segments that end at `position` before the scanned segments, and return their term runs."""
        older: list[Segment] = []
        start = position - self.segment_bytes
        while start >= 0:
            if start in self.existing:
                segment = self.segment_with_index(start, next_index) or self.reindexed(start, next_index)
            else:
                segment = self.lost_segment(start, next_index)
            if segment is None:
                break
            older.append(segment)
            next_index = segment.first_index
            start -= self.segment_bytes
        older.reverse()
        self.note_lost_snapshot(older)
        while older and not self.has_known_base(older[0]):
            # A trim was interrupted. The segments that it left below its snapshot are not part of the log.
            self.trim_interrupted = True
            self.index.delete(older[0].start)  # made anew above: a start cut short must not take it for the log's
            older.pop(0).discard()
        self.segments[:0] = older
        runs: list[tuple[int, int]] = []
        for segment, next_segment in zip(older, self.segments[1:], strict=False):
            count = next_segment.first_index - segment.first_index
            for run in _term_runs(segment.first_index, count, self.term_reader(segment)):
                if not runs or runs[-1][1] != run[1]:
                    runs.append(run)
        return runs

    def has_known_base(self, segment: Segment) -> bool:
        """Return whether the log may begin with a segment: it is the very first, or has a snapshot at its start.

        A rotten or lost snapshot counts, too. An interrupted trim leaves no snapshot there, because segments go before
        it.
        """
        if segment.start == 0 or segment.start in self.snapshots.rotten:
            return True
        base = self.snapshots.at_or_below(segment.start)
        return base is not None and base.position == segment.start and base.last_index + 1 == segment.first_index

    def note_lost_snapshot(self, older: list[Segment]) -> None:
        """Count the snapshot at the beginning of the log as rotten if it is missing and no trim was interrupted.

        A trim removes all index files, durably, before the first segment. So an index file shows that there was none.
        """
        below_base = list(takewhile(lambda segment: not self.has_known_base(segment), older))
        if any(segment.start in self.indexed for segment in below_base) and (
            older[0].start not in self.snapshots.positions()
        ):
            self.notes.append(f"the snapshot at {older[0].start}, where the log begins, is missing")
            self.snapshots.condemn(older[0].start)

    def segment_with_index(self, start: int, next_index: int) -> Segment | None:
        """Return a segment whose index file reaches from its start to the entry before `next_index`, else None.

        The bisection for terms reads some index units. Each is compared with its entry. If they differ, the index file
        is made anew from the entries. If these do not verify, the index file stays as it is.
        """
        first_index = self.first_index_by_file(start, next_index)
        if first_index is None:
            return None
        segment = self.segment(start, first_index)
        try:
            _term_runs(first_index, next_index - first_index, partial(self.written_term, segment))
        except CorruptionError as error:
            self.notes.append(str(error))
            rebuilt = self.reindexed(start, next_index)
            if rebuilt is not None:
                segment.discard()
                return rebuilt
        return segment

    def lost_segment(self, start: int, next_index: int) -> Segment | None:
        """Return an empty segment, to be repaired, if only its index file is left and reaches that far; else None."""
        first_index = self.first_index_by_file(start, next_index)
        if first_index is None:
            return None
        lost_range = CorruptRange(start, start + self.segment_bytes, first_index, next_index)
        self.notes.append(
            f"{segment_path(start)} is missing (bytes {lost_range.start} to {lost_range.end} are not served)"
        )
        self.corrupt.append(lost_range)
        return self.segment(start, first_index, self.disk.open(segment_path(start), create=True))

    def first_index_by_file(self, start: int, next_index: int) -> int | None:
        """Return the first index in a segment's index file, if the file reaches to the entry before `next_index`."""
        first = self.index.read(start, 0)
        if first is None or first.position != start or not first.index < next_index:
            return None
        last = self.index.read(start, next_index - 1 - first.index)
        if last is None or last.index != next_index - 1 or not start < last.end <= start + self.segment_bytes:
            return None
        return first.index

    def reindexed(self, start: int, next_index: int) -> Segment | None:
        """Return a segment with its index file made anew from its entries; None (with a note) if they do not verify."""
        first = self.first_entry_of(start)
        if first is None:
            self.notes.append(f"{segment_path(start)} has neither a valid first entry nor an index: not served")
            return None
        segment = self.segment(start, first.index)
        collected = Collected()
        cursor = Cursor(start, first.index, 0, None)
        fault = scan_segment(segment.file, start, start + self.segment_bytes, cursor, collected)
        if fault is not None or cursor.index != next_index:
            reason = fault.reason if fault is not None else f"it ends at index {cursor.index - 1}"
            self.notes.append(f"{segment_path(start)}: {reason}, and it has no whole index: not served")
            segment.discard()
            return None
        self.index.write(segment, 0, b"".join(collected.units))
        self.index.sync(start)
        return segment

    def written_term(self, segment: Segment, index: int) -> int:
        """Return the term of an entry of a closed segment.

        Raises `CorruptionError` if its index file and the entry differ.
        """
        unit = self.index.read(segment.start, index - segment.first_index)
        entry = None if unit is None else header_at(segment.file, segment.start, unit.position)
        if unit is None or entry is None or (entry.index, entry.term, entry.size) != (index, unit.term, unit.size):
            raise CorruptionError(
                f"the index of {segment_path(segment.start)} has another entry {index} than the segment"
            )
        return unit.term

    def term_reader(self, segment: Segment) -> Callable[[int], int]:
        def term_at(index: int) -> int:
            unit = self.index.read(segment.start, index - segment.first_index)
            return unit.term if unit is not None else 0

        return term_at

    # Settling

    def settle_index(self, segment: Segment, first_index: int) -> None:
        """Make a scanned segment's index file match the scan."""
        units = b"".join(self.collected.units)
        slot = first_index - segment.first_index
        count = len(units) // UNIT_BYTES
        if self.index.read_raw(segment.start, slot, count + 1) != units:
            self.index.write(segment, slot, units)
            self.index.truncate(segment.start, slot + count, self.keep.units)
            self.index.sync(segment.start)

    def end_of_log(self, cursor: Cursor) -> int:
        """Return the position where the last entry ends.

        If a blank follows, and a snapshot lies behind the blank, return the position of the snapshot.
        """
        for base in self.snapshots.list():
            if (base.position, base.last_index, base.chain_crc) == (cursor.position, cursor.index - 1, cursor.chain):
                return base.position
        return cursor.last_end

    def cut_behind(self, end: int) -> None:
        """Remove everything behind the end of the log, so that no leftover can ever be taken for one of its entries."""
        while len(self.segments) > 1 and self.segments[-1].start > end:
            # A blank led to this segment, which has no entry. The next entry may fit where the blank is.
            self.segments.pop().discard()
        last = self.segments[-1]
        next_start = last.start + self.segment_bytes
        self.disk.unlink(f"{DIRECTORY}/spare")  # an earlier build gave the next segment this name
        for start in reversed(self.files_found):
            if start == next_start and self.keep.bytes:
                self.keep_next(start)
            elif start > last.start:
                self.disk.unlink(segment_path(start))
        for start in list_positions(self.disk, INDEX_DIRECTORY):
            if start == next_start and self.keep.units:
                self.index.truncate(start, 0, self.keep.units)
            elif start > last.start:
                self.index.delete(start)
        self.disk.sync_dir(DIRECTORY)
        shorten(last.file, end - last.start, self.keep.bytes)

    def keep_next(self, start: int) -> None:
        """Keep the file of the next segment, which holds no entry of the log, erased."""
        file = self.disk.open(segment_path(start))
        try:
            shorten(file, 0, self.keep.bytes)
        finally:
            file.close()

    def rewrite(self, position: int, end: int) -> None:
        """Write and sync the entries from `position` up to `end` again. Sync their index files and the directories."""
        last = self.segments[-1]
        for segment in self.segments:
            segment_end = end if segment is last else segment.start + self.segment_bytes
            if segment is not last and segment_end <= position:
                continue
            at = max(position, segment.start)
            while at < segment_end:
                block = segment.file.pread(min(BLOCK_BYTES, segment_end - at), at - segment.start)
                if not block:
                    break
                segment.file.pwrite(block, at - segment.start)
                at += len(block)
            segment.file.datasync()
            self.index.sync(segment.start)
        self.disk.sync_dir(DIRECTORY)
        self.disk.sync_dir(INDEX_DIRECTORY)

    def recent_metas(self) -> list[EntryMeta]:
        """Return the metas of the last entries, consecutive up to the last entry."""
        memberships = {meta.index: meta for meta in self.collected.memberships}
        return [memberships.get(fields[0]) or EntryMeta(*fields) for fields in self.collected.recent]


def _term_runs(first_index: int, count: int, term_at: Callable[[int], int]) -> list[tuple[int, int]]:
    """Return the runs of equal terms among `count` entries, by bisection. Terms never decrease along the log."""
    runs: list[tuple[int, int]] = []
    index, end = first_index, first_index + count
    while index < end:
        term = term_at(index)
        runs.append((index, term))
        low, high = index + 1, end
        while low < high:
            middle = (low + high) // 2
            if term_at(middle) > term:
                high = middle
            else:
                low = middle + 1
        index = low
    return runs
