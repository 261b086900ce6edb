"""Log under test, together with the list of entries that it must hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dledger.format import BLANK_BYTES, HEADER_BYTES, blank, encode_membership, seal
from dledger.store.disk import Disk
from dledger.store.identity import FORMAT, Identity, write_identity
from dledger.store.log import LogStore
from dledger.store.recovered import Recovery
from dledger.store.segments import segment_path
from dledger.store.snapshots import SnapshotStore
from dledger.store.sync import SyncTicket
from dledger.testing.disk import SimDisk
from dledger.testing.inodes import Keep
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId, SnapshotMeta

SEGMENT_BYTES = 4096
MEMBERS = Membership((ReplicaId("n0", "aa"), ReplicaId("n1", "bb"), ReplicaId("n2", "cc")))

Entry = tuple[EntryMeta, bytes]


def make_identity(disk: Disk, segment_bytes: int = SEGMENT_BYTES) -> None:
    write_identity(disk, Identity(FORMAT, "cluster", "group", "n0", "aa", segment_bytes))
    write_identity(disk, Identity(FORMAT, "cluster", "group", "n0", "aa", segment_bytes))


def make_entry(index: int, term: int, position: int, chain: int, body: bytes, kind: int = EntryKind.GROUP) -> Entry:
    entry = bytearray(HEADER_BYTES) + body
    meta = seal(entry, kind, index, term, position, 0, chain)
    if kind == EntryKind.MEMBERSHIP:
        meta = EntryMeta(index, term, position, meta.size, kind, 0, meta.chain_crc, MEMBERS)
    return meta, bytes(entry)


def ensure_space(log: LogStore, size: int, *, privileged: bool = False) -> None:
    """Reserve space for an entry of `size` bytes, or raise `LogFullError`."""
    need = log.need_to(log.next_position(size) + size, privileged=privileged)
    if not log.has(need):
        log.reserve(need)


def claim(log: LogStore, metas: Sequence[EntryMeta], *, privileged: bool = False) -> None:
    """Claim space for entries, reserve it where needed, or raise `LogFullError`."""
    while not log.claim(metas, privileged=privileged):
        log.reserve(log.need_for(metas, privileged=privileged))


class LoggedModel:
    """The log and, in `entries`, everything that was appended and not truncated."""

    def __init__(
        self,
        disk: Disk,
        segment_bytes: int = SEGMENT_BYTES,
        reserve_bytes: int = 1024,
        max_open_segments: int | None = None,
    ) -> None:
        self.disk = disk
        self.max_open_segments = max_open_segments
        self.segment_bytes = segment_bytes
        self.reserve_bytes = reserve_bytes
        self.entries: list[Entry] = []
        self.snapshots: SnapshotStore
        self.log: LogStore
        self.recovery: Recovery
        self.open()

    def open(self) -> Recovery:
        self.snapshots = SnapshotStore.open(self.disk)
        self.log, self.recovery = LogStore.open(
            self.disk,
            segment_bytes=self.segment_bytes,
            snapshots=self.snapshots,
            reserve_bytes=self.reserve_bytes,
            max_open_segments=self.max_open_segments,
        )
        return self.recovery

    @property
    def sim(self) -> SimDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk

    def reopen(self, *, clean: bool = True) -> Recovery:
        """Close the log, and open it again."""
        self.log.close(clean=clean)
        return self.open()

    def kill(self) -> Recovery:
        """Open the log of a process that was killed."""
        self.sim.kill()
        return self.open()

    def crash(self, seed: int = 1, keep: Keep = "random") -> Recovery:
        """Open the log after a loss of power."""
        self.sim.crash(random.Random(seed), keep)
        return self.open()

    def flip(self, position: int, bit: int = 0) -> None:
        """Flip a bit of the byte at this position of the log."""
        offset = position % self.segment_bytes
        self.sim.flip_bit(segment_path(position - offset), 8 * offset + bit)

    def next_entry(self, body: bytes = b"x", term: int = 1, kind: int = EntryKind.GROUP) -> Entry:
        """Return the entry that comes next."""
        log, size = self.log, HEADER_BYTES + len(body)
        return make_entry(log.last_index + 1, term, log.next_position(size), log.last_chain, body, kind)

    def append(
        self, body: bytes = b"x", term: int = 1, kind: int = EntryKind.GROUP, *, privileged: bool = False
    ) -> EntryMeta:
        if kind == EntryKind.MEMBERSHIP:
            body = encode_membership(MEMBERS)
        ensure_space(self.log, HEADER_BYTES + len(body), privileged=privileged)
        entry = self.next_entry(body, term, kind)
        self.put(entry, privileged=privileged)
        return entry[0]

    def put(self, *entries: Entry, privileged: bool = True) -> None:
        """Append these entries, also to the model."""
        self.write([meta for meta, _ in entries], [data for _, data in entries], privileged=privileged)
        self.entries += entries

    def write(self, metas: list[EntryMeta], data: bytes | list[bytes], *, privileged: bool = True) -> None:
        """Append entries without adding them to the model."""
        claim(self.log, metas, privileged=privileged)
        self.log.append(metas, data)

    def fill(self, rng: random.Random, count: int, term: int = 1, largest: int = 900) -> None:
        for _ in range(count):
            self.append(rng.randbytes(rng.randint(0, largest)), term)

    def begin_sync(self) -> SyncTicket:
        ticket = self.log.begin_sync()
        assert ticket is not None
        return ticket

    def sync(self) -> None:
        ticket = self.log.begin_sync()
        if ticket is not None:
            ticket.run()
            self.log.finish_sync(ticket)

    def truncate(self, first_index: int) -> None:
        self.log.take_cut(self.log.cut(first_index))
        self.forget_from(first_index)

    def reset(self, base: SnapshotMeta) -> None:
        """Replace the log by the position of a snapshot."""
        self.log.take_replaced(self.log.begin_replacing(base)())

    def trim(self, position: int) -> None:
        """Trim the log, sync the mark, and remove the files."""
        self.log.trim(position)
        self.log.sync_mark()
        self.log.remove_trimmed()

    def trim_to(self, position: int) -> None:
        """Store a snapshot, and trim the log to it."""
        self.snapshot(position)
        self.trim(position)

    def lose_index(self) -> None:
        for name in self.disk.listdir("index"):
            self.disk.unlink(f"index/{name}")

    def heal(self) -> None:
        """Repair all corrupt ranges by the right bytes, as by those of a peer."""
        for bad in self.log.corrupt_ranges:
            self.log.repair(bad.start, self.committed_bytes(bad.start, bad.end))
        assert self.log.corrupt_ranges == ()
        self.check()

    def replacements(self, first_index: int, bodies: list[bytes], term: int) -> list[Entry]:
        """Return entries of another leader that replace the log from `first_index` on."""
        entries: list[Entry] = []
        before = [meta for meta, _ in self.entries if meta.index < first_index]
        position, chain = (before[-1].end, before[-1].chain_crc) if before else (0, 0)
        for index, body in enumerate(bodies, first_index):
            size = HEADER_BYTES + len(body)
            left = self.segment_bytes - position % self.segment_bytes
            if size != left and size + BLANK_BYTES > left:
                position += left
            entries.append(make_entry(index, term, position, chain, body))
            position, chain = entries[-1][0].end, entries[-1][0].chain_crc
        return entries

    def replace(self, entries: list[Entry], *, privileged: bool = False) -> None:
        """Replace the end of the log by these entries, as a follower does."""
        metas = [meta for meta, _ in entries]
        claim(self.log, metas, privileged=privileged)
        self.truncate(metas[0].index)
        self.put(*entries, privileged=privileged)

    def forget_from(self, first_index: int) -> None:
        self.entries = [entry for entry in self.entries if entry[0].index < first_index]

    def snapshot(self, position: int, content: bytes = b"state") -> SnapshotMeta:
        """Store a snapshot at a segment start that lies in the log."""
        last = [meta for meta, _ in self.entries if meta.position < position][-1]
        return self.receive(SnapshotMeta(position, last.index, last.term, last.chain_crc, MEMBERS), content)

    def receive(self, meta: SnapshotMeta, content: bytes = b"state") -> SnapshotMeta:
        """Store a snapshot, also one of another log."""
        writer = self.snapshots.begin(meta)
        writer.write(content)
        return writer.commit()

    def committed_bytes(self, begin: int, end: int) -> bytes:
        """Return the bytes that the log's files must hold in this range, blanks included."""
        content = bytearray()
        start = self.entries[0][0].position
        at = start
        for meta, data in self.entries:
            if meta.position > at:
                content += blank(meta.position - at)
            content += data
            at = meta.end
        return bytes(content[begin - start : end - start])

    def check(self, *, first_index: int | None = None) -> None:
        """Check that the log holds exactly the entries, from `first_index` on."""
        log = self.log
        kept = [entry for entry in self.entries if first_index is None or entry[0].index >= first_index]
        assert log.last_index == (kept[-1][0].index if kept else log.first_index - 1)
        for meta, data in kept:
            assert log.meta(meta.index) == meta
            assert log.term_at(meta.index) == meta.term
            assert log.position_at(meta.index) == meta.position
            assert log.index_at(meta.position) == meta.index
            assert log.read(meta.position, meta.size) == data
            assert log.read_nowait(meta.position, meta.size) in (data, None)
        runs = [(meta.position, meta.size) for meta, _ in kept]
        assert log.read_runs_nowait(runs) in ([data for _, data in kept], None)
        if kept:
            last = kept[-1][0]
            assert (log.last_term, log.last_chain) == (last.term, last.chain_crc)
            bases = {meta.position for meta in self.snapshots.list() if meta.last_index == last.index}
            assert log.end_position in {last.end, *bases}
        read = 0
        while read < len(kept):
            metas, data = log.read_entries(kept[read][0].index, 2000, verify=True)
            assert metas
            expected = kept[read : read + len(metas)]
            assert metas == [meta for meta, _ in expected]
            assert data == b"".join(data for _, data in expected)
            read += len(metas)

    def check_reopened(self, recovery: Recovery) -> Recovery:
        """Check that a log that was opened again holds a part of the entries that it reports, and go on with these."""
        self.forget_from(recovery.last_index + 1)
        self.check(first_index=recovery.first_index)
        return recovery


def synced_log(disk: Disk | None = None, count: int = 60, *, seed: int = 1, **options: int) -> LoggedModel:
    """Return a log of durable entries, over several segments unless they are few."""
    disk = disk or SimDisk(random.Random(7))
    make_identity(disk, options.get("segment_bytes", SEGMENT_BYTES))
    model = LoggedModel(disk, **options)
    model.fill(random.Random(seed), count)
    model.sync()
    return model


@contextmanager
def failing_after(disk: SimDisk, steps: int, free: Sequence[str] = ("pread",)) -> Iterator[None]:
    """Let all operations behind this number of steps fail. Operations that are `free` never fail, and do not count."""
    left = steps

    def is_due(operation: str, _path: str) -> bool:
        nonlocal left
        left -= operation not in free
        return left < 0 and operation not in free

    fault = disk.fail(is_due, once=False)
    try:
        yield
    finally:
        disk.faults.remove(fault)


def left_in_segment(log: LogStore) -> int:
    return log.segment_bytes - log.end_position % log.segment_bytes


def body_leaving(log: LogStore, left: int) -> bytes:
    """Return a body whose entry ends `left` bytes before the segment's end."""
    assert left == 0 or left >= BLANK_BYTES
    return bytes(left_in_segment(log) - HEADER_BYTES - left)
