"""Earlier part of the log, which other nodes keep and this node lacks: collected beside the log, and joined at a start.

    earlier/plan      what is collected, and how far: `crc32` of the rest in 8 hexadecimal digits, a line feed, JSON
    earlier/snapshot  a copy of the snapshot that the part begins behind; none if it is the very beginning
    earlier/N         segments, named as in `commitlog/`

The part does not belong to the log before all of it verifies. It is verified from that snapshot on, entry by entry, to
the entry that the log begins behind. A start then joins it in steps that can be repeated:

1. Segments move into `commitlog/`, the last first, so that they always adjoin the log without a gap. Until a snapshot
   is at their beginning, a recovery takes these segments for the rest of a trim and removes them.
2. Files derived from the log are removed. They are made anew from the longer log.
3. The snapshot gets its name. From then on the log begins there.
4. The directory is removed.
"""

from __future__ import annotations

import msgspec

from dledger.errors import CorruptionError
from dledger.format import HEADER_BYTES, link
from dledger.store.disk import Disk, write_file_durably
from dledger.store.scan import Collected, Cursor, header_at, scan_segment
from dledger.store.segments import DIRECTORY as SEGMENTS
from dledger.store.segments import list_positions, segment_path
from dledger.store.snapshots import DIRECTORY as SNAPSHOTS
from dledger.store.snapshots import read_copy, snapshot_path
from dledger.store.unreadable import salvage
from dledger.types import SnapshotMeta
from dledger_base.checksum import crc32

DIRECTORY = "earlier"
PLAN = f"{DIRECTORY}/plan"
SNAPSHOT = f"{DIRECTORY}/snapshot"
_CRC_CHARACTERS = 8


class Plan(msgspec.Struct, frozen=True):
    """The part of the log from position `first` to `end`, where the log of this `incarnation` begins.

    The entry before `position` has this index, term and chain crc. Everything before `position` is verified and
    durable.
    """

    incarnation: str
    segment_bytes: int
    first: int
    end: int
    position: int
    index: int = -1
    term: int = 0
    chain: int = 0
    whole: bool = False

    @property
    def part(self) -> tuple[str, int, int, int]:
        """Incarnation, segment size in bytes, first position and end of the collected part."""
        return self.incarnation, self.segment_bytes, self.first, self.end

    @property
    def segments(self) -> range:
        """Positions where the part's segments begin."""
        return range(self.first, self.end, self.segment_bytes)

    def at(self, cursor: Cursor) -> Plan:
        """Return the plan, verified up to a cursor."""
        assert cursor.chain is not None
        return msgspec.structs.replace(
            self, position=cursor.position, index=cursor.index - 1, term=cursor.term, chain=cursor.chain
        )


class EarlierPart:
    """Collects the part that a plan names.

    Every call blocks and may raise `OSError`, and `CorruptionError` where noted.
    """

    def __init__(self, disk: Disk, plan: Plan) -> None:
        self.plan = plan
        self._disk = disk

    @classmethod
    def resumed_or_begun(cls, disk: Disk, segment_bytes: int, incarnation: str, first: int, end: int) -> EarlierPart:
        """Continue to collect this part, or begin."""
        plan = read_plan(disk)
        wanted = Plan(incarnation, segment_bytes, first, end, first)
        if plan is None or plan.part != wanted.part:
            remove(disk)
            disk.mkdir(DIRECTORY)
            disk.sync_dir(".")
            plan = wanted
        return cls(disk, plan)

    @property
    def needs_snapshot(self) -> bool:
        """True if the snapshot that the part begins behind is not here yet."""
        return self.plan.first > 0 and self.plan.index < 0

    def is_doubtful(self) -> bool:
        """Return whether what was taken before may be wrong, if what comes next does not verify.

        A snapshot of another log shows with the first segment behind it, or at the end.
        """
        return self.plan.position in {self.plan.first, self.plan.end}

    def write(self, path: str, data: bytes, offset: int) -> None:
        """Add a piece of a file of the part."""
        file = self._disk.open(path, create=True)
        try:
            file.pwrite(data, offset)
        finally:
            file.close()

    def take_snapshot(self) -> None:
        """Verify the snapshot, all of which was written, and record it.

        Raises `CorruptionError` if it does not verify.
        """
        meta = read_copy(self._disk, SNAPSHOT, self.plan.first)
        self._sync(SNAPSHOT)
        self._save(self.plan.at(Cursor(meta.position, meta.last_index + 1, meta.last_term, meta.chain_crc)))

    def take_segment(self) -> None:
        """Verify the next segment, all of which was written, and record it.

        Raises `CorruptionError` if an entry does not follow.
        """
        plan = self.plan
        path, end = self.segment_path, plan.position + plan.segment_bytes
        cursor = Cursor(plan.position, plan.index + 1, plan.term, plan.chain)
        file = self._disk.open(path)
        try:
            fault = scan_segment(file, plan.position, end, cursor, Collected())
        finally:
            file.close()
        if fault is not None:
            raise CorruptionError(f"{path}: {fault.reason}")
        self._sync(path)
        self._save(plan.at(cursor))

    def finish(self, base: SnapshotMeta) -> None:
        """Mark the part as complete, so that it is joined at the next start.

        `base` is the snapshot that the log begins behind. Raises `CorruptionError` if the part does not end where the
        log begins.
        """
        plan = self.plan
        if (plan.position, plan.index, plan.term, plan.chain) != (
            base.position,
            base.last_index,
            base.last_term,
            base.chain_crc,
        ):
            raise CorruptionError(f"the fetched part of the log ends with {plan}, but the log begins behind {base}")
        self._save(msgspec.structs.replace(plan, whole=True))

    @property
    def segment_path(self) -> str:
        """Path of the file for the next segment."""
        return f"{DIRECTORY}/{self.plan.position:020d}"

    def _sync(self, path: str) -> None:
        file = self._disk.open(path)
        try:
            file.datasync()
        finally:
            file.close()
        self._disk.sync_dir(DIRECTORY)

    def _save(self, plan: Plan) -> None:
        raw = msgspec.json.encode(plan)
        write_file_durably(self._disk, PLAN, b"%08x\n" % crc32(raw) + raw)
        self.plan = plan


def read_plan(disk: Disk) -> Plan | None:
    """Return the saved plan; None if there is none, or if it does not verify or cannot be read. Raises `OSError`."""
    if not disk.exists(PLAN):
        return None
    file = disk.open(PLAN)
    try:
        data = salvage(file, file.size(), 0)
    finally:
        file.close()
    raw = data[_CRC_CHARACTERS + 1 :]
    if data[: _CRC_CHARACTERS + 1] != b"%08x\n" % crc32(raw):
        return None
    try:
        return msgspec.json.decode(raw, type=Plan)
    except msgspec.MsgspecError:
        return None


def remove(disk: Disk) -> None:
    """Remove the collected part. Raises `OSError`."""
    if disk.exists(DIRECTORY):
        disk.rmtree(DIRECTORY)
        disk.sync_dir(".")


def _is_followed(disk: Disk, plan: Plan) -> bool:
    """Return whether the log goes on behind the part with the next entry. The log may have been replaced meanwhile."""
    try:
        file = disk.open(segment_path(plan.end))
    except FileNotFoundError:
        return False
    try:
        first = header_at(file, plan.end, plan.end)
        header = salvage(file, HEADER_BYTES, 0)
    finally:
        file.close()
    return first is not None and (first.index, first.chain_crc) == (plan.index + 1, link(header, 0, plan.chain))


def join_earlier(disk: Disk, incarnation: str, derived: tuple[str, ...]) -> str | None:
    """Join a complete part to the log, which must not be open. A part that can no longer be joined is removed.

    `derived` are directories whose files are made anew if they are missing. Returns a note. After an `OSError` the next
    start continues.
    """
    if not disk.exists(DIRECTORY):
        return None
    plan = read_plan(disk)
    begins = min(list_positions(disk, SEGMENTS), default=-1)
    if plan is None or plan.incarnation != incarnation or not plan.first <= begins <= plan.end:
        remove(disk)
        return None
    if not plan.whole:
        return None
    if not _is_followed(disk, plan):
        remove(disk)
        return None
    for start in sorted(list_positions(disk, DIRECTORY), reverse=True):
        disk.rename(f"{DIRECTORY}/{start:020d}", segment_path(start))
    disk.sync_dir(SEGMENTS)
    if not set(plan.segments) <= set(list_positions(disk, SEGMENTS)):
        remove(disk)  # a start that was cut short lost one of them; the recovery removes the others
        return None
    for directory in derived:
        disk.rmtree(directory)
    disk.sync_dir(".")
    if disk.exists(SNAPSHOT):
        disk.rename(SNAPSHOT, snapshot_path(plan.first))
        disk.sync_dir(SNAPSHOTS)
    remove(disk)
    return f"the log begins at {plan.first} now instead of {plan.end}: other nodes had the part before it"
