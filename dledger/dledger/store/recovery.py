"""Reads the log back after any stop, and makes what it read durable.

What a crash may leave, and what becomes of it:

1. Entries at or above the durable mark may be torn, missing or out of order (the kernel persisted 12 and not 11): the
   first invalid one ends the log, whatever follows.  What follows is cut off, or erased where its space is to be kept,
   so that it can never come back.
2. Entries at or above the mark that do verify may be in the page cache only (an fdatasync had failed): they are
   rewritten and synced, with the directories, before anything relies on them.
3. An invalid entry below the mark is corruption, for it once was durable: it stays, is listed in `corrupt_ranges`, and
   the log goes on behind it; the index, the next segment or the mark itself tells where.
4. Index files may be missing or torn: they are rebuilt from the segments.
5. A reset of the log may have been interrupted: `raft/reset` says so, and it is done again.

Verification starts at the newest snapshot at or below the mark.  Older segments are taken on their index files' word
and scrubbed later; those whose index is not whole are scanned.  One whose index file alone is there was lost, and is
corrupt throughout: a trim deletes the index file first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.errors import CorruptionError, IdentityError, MarkContradictedError
from dledger.format import HEADER_BYTES, link
from dledger.store.damage import CorruptRange, joined
from dledger.store.disk import Disk
from dledger.store.erase import shorten
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import UNIT_BYTES, IndexFiles, IndexUnit, no_membership_entries
from dledger.store.mark import PATH as MARK_PATH
from dledger.store.mark import MarkValue
from dledger.store.recovered import Recovered, Recovery
from dledger.store.scan import BLOCK_BYTES, Collected, Cursor, Fault, header_at, scan_segment
from dledger.store.segments import DIRECTORY, Segment, list_positions, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.space import NOTHING_KEPT, KeptBack
from dledger.types import EntryMeta, SnapshotMeta

RECENT_ENTRIES = 65_536
"""Entries whose metas stay in memory, at least."""


def recover(
    disk: Disk,
    index: IndexFiles,
    snapshots: SnapshotStore,
    mark: MarkValue | None,
    segment_bytes: int,
    keep: KeptBack = NOTHING_KEPT,
) -> Recovered:
    """Read, verify and settle the log.  `mark` None means that no valid mark was found.

    Of the space behind the log's end `keep` is kept, erased, if it is there; the rest is given back.

    Raises `IdentityError` if the segments were written with another segment size, `CorruptionError` if nothing
    usable is left, `MarkContradictedError` if the log is not what its mark says, `OSError` if the disk fails.
    """
    return _Recoverer(disk, index, snapshots, mark, segment_bytes, keep).run()


class _Recoverer:
    """One recovery; its fields are the intermediate results of `run`, which calls the other methods in order."""

    def __init__(
        self,
        disk: Disk,
        index: IndexFiles,
        snapshots: SnapshotStore,
        mark: MarkValue | None,
        segment_bytes: int,
        keep: KeptBack,
    ) -> None:
        self.disk = disk
        self.index = index
        self.snapshots = snapshots
        self.mark_valid = mark is not None
        self.mark = mark or MarkValue()
        self.segment_bytes = segment_bytes
        self.keep = keep
        self.found = list_positions(disk, DIRECTORY)
        self.starts = self.without_next(self.found)
        self.segments: list[Segment] = []
        self.collected = Collected(recent=deque(maxlen=RECENT_ENTRIES))
        self.corrupt: list[CorruptRange] = []
        self.unread: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self.trim_interrupted = False

    def run(self) -> Recovered:
        for start in self.found:
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
            corrupt_ranges=joined(self.corrupt, self.snapshots.positions()),
            notes=self.notes,
            mark_valid=self.mark_valid,
            clean=self.mark.clean,
            saved_commit=-1,
        )
        return Recovered(self.segments, self.recent_metas(), recovery, self.trim_interrupted)

    def without_next(self, found: list[int]) -> list[int]:
        """The segments of the log: the file of the next one has its name before there is an entry in it."""
        last = found[-1] if found else 0
        if last < self.mark.position or not found or last % self.segment_bytes:
            return found
        segment = Segment(self.disk, last, 0)
        try:
            return found if header_at(segment.file, last, last) is not None else found[:-1]
        finally:
            segment.discard()

    # Where verification starts

    def choose_base(self) -> SnapshotMeta | None:
        """The newest snapshot at or below the mark that verifies; those that do not are no longer listed.

        The one that the log begins behind may stand above the mark: if the newest copy of that rotted, the other one
        can be older than the last trim. Such a trim waited until the log was durable up to its snapshot.

        Nor is one that was received to replace this log, which did not come to pass: if the log goes on beyond it with
        entries that nobody else has, they must not be taken for corrupt ones of the snapshot's log.
        """
        begin = self.found[0] if self.found else 0
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
        """Whether a snapshot inside this log is joined neither by the mark nor by the entry that stands behind it."""
        if not self.starts or meta.position <= self.starts[0]:
            return False  # whatever follows: without it nothing would tell the state before this log
        if self.mark_valid and meta.position == self.mark.position:
            return (meta.last_index, meta.chain_crc) != (self.mark.index, self.mark.chain)
        if meta.position not in self.starts:
            return False
        segment = Segment(self.disk, meta.position, 0)
        try:
            first = header_at(segment.file, meta.position, meta.position)
            header = segment.file.pread(HEADER_BYTES, 0)
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
        """The first entry of a segment, by its header or by the index file."""
        if start in self.starts:
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
        """Verify from the cursor to the end of the log, segment by segment; leaves the cursor behind the last entry."""
        log_goes_on = True
        while log_goes_on:
            start = cursor.position - cursor.position % self.segment_bytes
            below_mark = self.mark_valid and start < self.mark.position
            if start not in self.starts and not below_mark and self.segments:
                break
            file = self.disk.open(segment_path(start), create=True)
            segment = Segment(self.disk, start, cursor.index, file)
            self.segments.append(segment)
            first_index = cursor.index
            self.collected.units.clear()
            log_goes_on = self.scan_one(segment, cursor)
            self.settle_index(segment, first_index)
        if self.mark_valid and cursor.index <= self.mark.index:
            mark = f"{MARK_PATH} says index {self.mark.index} at {self.mark.position}"
            raise MarkContradictedError(f"the log ends at index {cursor.index - 1}, below its durable mark: {mark}")

    def scan_one(self, segment: Segment, cursor: Cursor) -> bool:
        """Verify one segment; False if the log ends in it."""
        end = segment.start + self.segment_bytes
        if self.mark_valid and cursor.position < self.mark.position:
            below = min(end, self.mark.position)
            while cursor.position < below:
                fault = scan_segment(segment.file, segment.start, end, cursor, self.collected, stop=below)
                if fault is not None:
                    self.skip(segment, cursor, fault)
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

    def skip(self, segment: Segment, cursor: Cursor, fault: Fault) -> None:
        """Record what does not verify at the cursor and move it to the next place from which the log can go on."""
        resume = self.resume_point(segment, cursor, fault)
        bad = CorruptRange(cursor.position, resume.position, cursor.index, resume.index)
        self.notes.append(f"{fault.reason} (bytes {bad.start} to {bad.end} are not served)")
        self.corrupt.append(bad)
        if not self.collected.term_runs or self.collected.term_runs[-1][1] != resume.term:
            self.collected.term_runs.append((cursor.index, resume.term))
        # Only intact entries are kept as recent ones, and those are consecutive.
        self.collected.recent.clear()
        known = self.index.read_raw(segment.start, cursor.index - segment.first_index, resume.index - cursor.index)
        if not no_membership_entries(known, cursor.index, resume.index):
            self.unread.append((cursor.index, resume.index))
        self.collected.units.append(known.ljust((resume.index - cursor.index) * UNIT_BYTES, b"\0"))
        cursor.position, cursor.index, cursor.term, cursor.chain = (
            resume.position,
            resume.index,
            resume.term,
            resume.chain,
        )
        cursor.last_end = resume.position

    def resume_point(self, segment: Segment, cursor: Cursor, fault: Fault) -> Cursor:
        mark, end = self.mark, segment.start + self.segment_bytes
        below = min(end, mark.position)
        if fault.size and cursor.position + fault.size <= below:
            return Cursor(cursor.position + fault.size, cursor.index + 1, fault.term, fault.chain)
        unit = self.index.read(segment.start, cursor.index - segment.first_index)
        if (
            unit is not None
            and (unit.position, unit.index) == (cursor.position, cursor.index)
            and unit.end <= below
            and unit.term >= cursor.term
        ):
            return Cursor(unit.end, cursor.index + 1, unit.term, None)
        if mark.position <= end:
            return Cursor(mark.position, mark.index + 1, mark.term, mark.chain)
        first = self.first_entry_of(end)
        if first is None or not cursor.index <= first.index <= mark.index:
            # Nothing tells at which index the next segment begins: it counts as corrupt from its start.
            return Cursor(end, cursor.index, cursor.term, None)
        return Cursor(end, first.index, cursor.term, cursor.chain if first.index == cursor.index else None)

    # The trusted part

    def attach_older(self, position: int, next_index: int) -> list[tuple[int, int]]:
        """Put the unbroken row of segments that end at `position` before the scanned ones; returns their term runs."""
        older: list[Segment] = []
        start = position - self.segment_bytes
        while start >= 0:
            if start in self.starts:
                segment = self.indexed(start, next_index) or self.rebuilt(start, next_index)
            else:
                segment = self.lost(start, next_index)
            if segment is None:
                break
            older.append(segment)
            next_index = segment.first_index
            start -= self.segment_bytes
        older.reverse()
        while older and not self.has_known_base(older[0]):
            # A trim was interrupted: what it left below its snapshot is no log of its own.
            self.trim_interrupted = True
            older.pop(0).discard()
        self.segments[:0] = older
        runs: list[tuple[int, int]] = []
        for segment, following in zip(older, self.segments[1:], strict=False):
            count = following.first_index - segment.first_index
            for run in _term_runs(segment.first_index, count, self.term_reader(segment)):
                if not runs or runs[-1][1] != run[1]:
                    runs.append(run)
        return runs

    def has_known_base(self, segment: Segment) -> bool:
        """Whether the state before a segment is known: it is the very first, or a snapshot stands there."""
        base = self.snapshots.at_or_below(segment.start)
        return segment.start == 0 or (
            base is not None and base.position == segment.start and base.last_index + 1 == segment.first_index
        )

    def indexed(self, start: int, next_index: int) -> Segment | None:
        """A segment whose index file reaches from its start to the entry before `next_index`, else None.

        What is read of that file is compared with the entries; where they differ it is made anew if they verify.
        """
        first_index = self.indexed_from(start, next_index)
        if first_index is None:
            return None
        segment = Segment(self.disk, start, first_index)
        try:
            _term_runs(first_index, next_index - first_index, partial(self.written_term, segment))
        except CorruptionError as error:
            self.notes.append(str(error))
            rebuilt = self.rebuilt(start, next_index)
            if rebuilt is not None:
                segment.discard()
                return rebuilt
        return segment

    def lost(self, start: int, next_index: int) -> Segment | None:
        """A segment of which such an index file is all that is left: an empty file, to be repaired; else None."""
        first_index = self.indexed_from(start, next_index)
        if first_index is None:
            return None
        lost = CorruptRange(start, start + self.segment_bytes, first_index, next_index)
        self.notes.append(f"{segment_path(start)} is missing (bytes {lost.start} to {lost.end} are not served)")
        self.corrupt.append(lost)
        return Segment(self.disk, start, first_index, self.disk.open(segment_path(start), create=True))

    def indexed_from(self, start: int, next_index: int) -> int | None:
        """The first index in a segment's index file, if that reaches to the entry before `next_index`."""
        first = self.index.read(start, 0)
        if first is None or first.position != start or not first.index < next_index:
            return None
        last = self.index.read(start, next_index - 1 - first.index)
        if last is None or last.index != next_index - 1 or not start < last.end <= start + self.segment_bytes:
            return None
        return first.index

    def rebuilt(self, start: int, next_index: int) -> Segment | None:
        """A segment whose index file is made anew from its entries; None (with a note) if they do not verify."""
        first = self.first_entry_of(start)
        if first is None:
            self.notes.append(f"{segment_path(start)} has neither a valid first entry nor an index: not served")
            return None
        segment = Segment(self.disk, start, first.index)
        into = Collected()
        cursor = Cursor(start, first.index, 0, None)
        fault = scan_segment(segment.file, start, start + self.segment_bytes, cursor, into)
        if fault is not None or cursor.index != next_index:
            reason = fault.reason if fault is not None else f"it ends at index {cursor.index - 1}"
            self.notes.append(f"{segment_path(start)}: {reason}, and it has no whole index: not served")
            segment.discard()
            return None
        self.index.write(segment, 0, b"".join(into.units))
        self.index.sync(start)
        return segment

    def written_term(self, segment: Segment, index: int) -> int:
        """The term of an entry of a closed segment. Raises `CorruptionError` if its index file and the entry differ."""
        unit = self.index.read(segment.start, index - segment.first_index)
        found = None if unit is None else header_at(segment.file, segment.start, unit.position)
        if unit is None or found is None or (found.index, found.term, found.size) != (index, unit.term, unit.size):
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
        """Make a scanned segment's index file say what was scanned, and no more."""
        units = b"".join(self.collected.units)
        slot = first_index - segment.first_index
        count = len(units) // UNIT_BYTES
        if self.index.read_raw(segment.start, slot, count + 1) != units:
            self.index.write(segment, slot, units)
            self.index.truncate(segment.start, slot + count, self.keep.units)
            self.index.sync(segment.start)

    def end_of_log(self, cursor: Cursor) -> int:
        """Where the last entry ends; behind a blank, if a snapshot stands there: the log goes on at its position."""
        for base in self.snapshots.list():
            if (base.position, base.last_index, base.chain_crc) == (cursor.position, cursor.index - 1, cursor.chain):
                return base.position
        return cursor.last_end

    def cut_behind(self, end: int) -> None:
        """Remove everything behind the end of the log, so that no leftover can ever be taken for an entry of it."""
        while len(self.segments) > 1 and self.segments[-1].start > end:
            # A blank led here, but no entry: the next entry may yet fit before the blank.
            self.segments.pop().discard()
        last = self.segments[-1]
        following = last.start + self.segment_bytes
        self.disk.unlink(f"{DIRECTORY}/spare")  # an earlier build called the next segment so
        for start in reversed(self.found):
            if start == following and self.keep.bytes:
                self.keep_next(start)
            elif start > last.start:
                self.disk.unlink(segment_path(start))
        for start in list_positions(self.disk, INDEX_DIRECTORY):
            if start == following and self.keep.units:
                self.index.truncate(start, 0, self.keep.units)
            elif start > last.start:
                self.index.delete(start)
        self.disk.sync_dir(DIRECTORY)
        shorten(last.file, end - last.start, self.keep.bytes)

    def keep_next(self, start: int) -> None:
        """Keep the next segment, which holds no entry of the log, erased."""
        file = self.disk.open(segment_path(start))
        try:
            shorten(file, 0, self.keep.bytes)
        finally:
            file.close()

    def rewrite(self, position: int, end: int) -> None:
        """Write and sync again what lies at or above `position`, with its index files and the directories."""
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
        """The metas of the last entries, consecutive up to the last one."""
        memberships = {meta.index: meta for meta in self.collected.memberships}
        return [memberships.get(fields[0]) or EntryMeta(*fields) for fields in self.collected.recent]


def _term_runs(first_index: int, count: int, term_at: Callable[[int], int]) -> list[tuple[int, int]]:
    """The runs of equal terms among `count` entries, found by bisection: terms never fall along the log."""
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
