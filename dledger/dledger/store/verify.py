"""Offline checks of a node directory: every committed byte must be valid, and the replicas' equal. Changes nothing.

`compare` checks the first invariant of the log over several directories. The committed bytes of all replicas are equal,
over the range that all of them keep and know to be committed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dledger.errors import CorruptionError, IdentityError
from dledger.store.commit import SavedCommit
from dledger.store.disk import Disk, File, OsDisk
from dledger.store.identity import read_identity
from dledger.store.index import DIRECTORY as INDEX_DIRECTORY
from dledger.store.index import UNIT
from dledger.store.mark import DurableMark
from dledger.store.scan import BLOCK_BYTES, Collected, Cursor, header_at, scan_segment
from dledger.store.segments import DIRECTORY, list_positions, segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta


@dataclass(slots=True)
class VerifyReport:
    """Content of a directory. Positions are bytes of the log; indexes are -1 if there is no entry.

    `sha256` covers the committed bytes [first_position, committed_position), including blanks. `problems` is empty if
    every byte up to commit index and durable mark verifies. Invalid bytes above that are a torn end, and no problem.
    """

    directory: str
    segment_bytes: int = 0
    first_index: int = 0
    last_index: int = -1
    first_position: int = 0
    end_position: int = 0
    commit_index: int = -1
    committed_position: int = 0
    entries: int = 0
    segments: int = 0
    sha256: str = ""
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Comparison:
    """Comparison of replicas on [first_position, end_position), the bytes that all of them keep as committed.

    `first_difference` is the lowest position at which two differ, -1 if none do.
    """

    first_position: int
    end_position: int
    equal: bool
    first_difference: int = -1
    problems: list[str] = field(default_factory=list)


def verify(directory: str, *, disk: Disk | None = None) -> VerifyReport:
    """Read and check a node directory's whole log; `disk` may replace the directory's files.

    Raises `IdentityError` if it is not a node directory.
    """
    disk = disk or OsDisk(directory, read_only=True)
    return _Verifier(directory, disk).run()


def inspect(
    directory: str, from_index: int = 0, count: int | None = None, *, disk: Disk | None = None
) -> Iterator[EntryMeta]:
    """Yield the entries from an index on, by their headers, in log order. Ends where no header follows.

    Raises `IdentityError` if it is not a node directory.
    """
    disk = disk or OsDisk(directory, read_only=True)
    segment_bytes = _segment_bytes(disk, directory)
    starts = list_positions(disk, DIRECTORY)
    expected: int | None = None
    for start in starts:
        if count is not None and count <= 0:
            return
        file = disk.open(segment_path(start))
        try:
            first = header_at(file, start, start)
            if first is None or (expected is not None and first.index != expected):
                return
            for meta in _headers(file, start, start + segment_bytes, first):
                expected = meta.index + 1
                if meta.index >= from_index and (count is None or count > 0):
                    yield meta
                    count = None if count is None else count - 1
        finally:
            file.close()


def compare(reports: Sequence[VerifyReport], *, disks: Sequence[Disk] | None = None) -> Comparison:
    """Compare the committed bytes of verified directories; `disks` may replace their files, in the same order."""
    first = max(report.first_position for report in reports)
    end = max(first, min(report.committed_position for report in reports))
    problems = [f"{report.directory}: {problem}" for report in reports for problem in report.problems]
    if len({report.segment_bytes for report in reports}) > 1:
        problems.append("the directories have different segment sizes: they are not of one group")
    disks = disks or [OsDisk(report.directory, read_only=True) for report in reports]
    difference = _first_difference(disks, reports[0].segment_bytes, first, end)
    return Comparison(first, end, difference < 0 and not problems, difference, problems)


def _segment_bytes(disk: Disk, directory: str) -> int:
    identity = read_identity(disk, directory)
    if identity is None:
        raise IdentityError(f"{directory} holds no node: there is no identity.json; name a node's directory")
    return identity.segment_bytes


def _headers(file: File, start: int, end: int, first: EntryMeta) -> Iterator[EntryMeta]:
    meta: EntryMeta | None = first
    while meta is not None:
        yield meta
        index, position = meta.index + 1, meta.end
        meta = header_at(file, start, position) if position < end else None
        if meta is not None and meta.index != index:
            return


def _first_difference(disks: Sequence[Disk], segment_bytes: int, first: int, end: int) -> int:
    position = first
    while position < end:
        start = position - position % segment_bytes
        stop = min(end, start + segment_bytes, position + BLOCK_BYTES)
        blocks = []
        for disk in disks:
            file = disk.open(segment_path(start))
            try:
                blocks.append(file.pread(stop - position, position - start))
            finally:
                file.close()
        for other in blocks[1:]:
            if other != blocks[0]:
                pairs = zip(blocks[0], other, strict=False)
                equal_bytes = next(
                    (at for at, (left_byte, right_byte) in enumerate(pairs) if left_byte != right_byte),
                    min(len(blocks[0]), len(other)),
                )
                return position + equal_bytes
        position = stop
    return -1


class _Verifier:
    """One verification. `run` calls the other methods in order."""

    def __init__(self, directory: str, disk: Disk) -> None:
        self.disk = disk
        self.report = VerifyReport(directory, _segment_bytes(disk, directory))
        self.starts = list_positions(disk, DIRECTORY)
        self.snapshots = SnapshotStore.open_readonly(disk)
        self.mark = DurableMark.read(disk)
        self.digest = hashlib.sha256()

    def run(self) -> VerifyReport:
        report = self.report
        report.problems.extend(self.snapshots.report.invalid)
        report.commit_index = SavedCommit.read(self.disk)
        if self.mark is None:
            report.problems.append("no copy of the durable mark is valid: what the replica acknowledged is unknown")
        cursor = self.starting_cursor()
        report.first_index, report.first_position = cursor.index, cursor.position
        report.committed_position = cursor.position
        self.walk(cursor)
        report.last_index = cursor.index - 1
        report.entries = cursor.index - report.first_index
        report.end_position = cursor.last_end
        report.sha256 = self.digest.hexdigest()
        self.check_snapshots()
        return report

    def starting_cursor(self) -> Cursor:
        """Return a cursor at the very beginning, or at the snapshot of the first segment, or at the lowest snapshot.

        A power loss may bring back a snapshot that a trim had deleted. It is below the log and does not matter.
        """
        first = min([*self.starts, *list_positions(self.disk, INDEX_DIRECTORY)], default=-1)
        if first == 0:
            return Cursor(0, 0, 0, 0)
        snapshots = self.snapshots.list()
        if snapshots:
            base = next((snapshot for snapshot in snapshots if snapshot.position == first), snapshots[0])
            return Cursor(base.position, base.last_index + 1, base.last_term, base.chain_crc)
        if self.starts:
            self.report.problems.append(f"the log begins at {self.starts[0]}, and no snapshot covers the log before it")
            file = self.disk.open(segment_path(self.starts[0]))
            try:
                entry = header_at(file, self.starts[0], self.starts[0])
            finally:
                file.close()
            return Cursor(self.starts[0], entry.index if entry is not None else 0, 0, None)
        return Cursor(0, 0, 0, 0)

    def walk(self, cursor: Cursor) -> None:
        """Verify segment by segment to the end of the log.

        A fault below the commit index or the durable mark is a problem.
        """
        report = self.report
        while True:
            start = cursor.position - cursor.position % report.segment_bytes
            self.check_snapshot_at(cursor)
            if start not in self.starts:
                self.check_end(cursor, f"{segment_path(start)} is missing")
                return
            first_index, start_position = cursor.index, cursor.position
            collected = Collected()
            file = self.disk.open(segment_path(start))
            try:
                fault = scan_segment(file, start, start + report.segment_bytes, cursor, collected)
                end = self.committed_end(first_index, start_position, cursor, collected)
                self.add_to_digest(file, start, start_position, end)
            finally:
                file.close()
            if cursor.index > first_index or not report.segments:  # otherwise it is the next segment's file
                report.segments += 1
            if fault is not None:
                self.check_end(cursor, fault.reason)
                return

    def committed_end(self, first_index: int, start_position: int, cursor: Cursor, collected: Collected) -> int:
        """Return the position up to which the scanned stretch is committed.

        A blank is committed if a later entry is.
        """
        commit = self.report.commit_index
        if commit >= cursor.index:
            return cursor.position
        if commit < first_index:
            return start_position
        _, position, size, _, _ = UNIT.unpack(collected.units[commit - first_index])
        return int(position + size)

    def add_to_digest(self, file: File, start: int, position: int, end: int) -> None:
        while position < end:
            block = file.pread(min(BLOCK_BYTES, end - position), position - start)
            self.digest.update(block)
            position += len(block)
            self.report.committed_position = position

    def check_end(self, cursor: Cursor, reason: str) -> None:
        """Report a problem if the log, which ends at the cursor, was longer once."""
        if self.report.commit_index >= cursor.index:
            self.report.problems.append(f"{reason}, at or below the commit index {self.report.commit_index}")
        elif self.mark is not None and self.mark.index >= cursor.index:
            self.report.problems.append(f"{reason}, below the durable mark (index {self.mark.index})")

    def check_snapshot_at(self, cursor: Cursor) -> None:
        base = self.snapshots.at_or_below(cursor.position)
        if base is not None and base.position == cursor.position:
            log_values = (cursor.index - 1, cursor.chain)
            if cursor.chain is not None and log_values != (base.last_index, base.chain_crc):
                self.report.problems.append(
                    f"the snapshot at {base.position} says index {base.last_index} with chain crc {base.chain_crc}, "
                    f"the log has {log_values[0]} with {log_values[1]}"
                )

    def check_snapshots(self) -> None:
        for meta in self.snapshots.list():
            try:
                self.snapshots.verify(meta)
            except CorruptionError as error:
                self.report.problems.append(str(error))
