"""A log under test beside the list of what it must hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

from dledger.format import BLANK_BYTES, HEADER_BYTES, blank, encode_membership, seal
from dledger.store.disk import Disk
from dledger.store.identity import FORMAT, Identity, write_identity
from dledger.store.log import LogStore
from dledger.store.recovered import Recovery
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId, SnapshotMeta

SEGMENT_BYTES = 4096
MEMBERS = Membership((ReplicaId("n0", "aa"), ReplicaId("n1", "bb"), ReplicaId("n2", "cc")))


def make_identity(disk: Disk, segment_bytes: int = SEGMENT_BYTES) -> None:
    write_identity(disk, Identity(FORMAT, "cluster", "group", "n0", "aa", segment_bytes))


def make_entry(
    index: int, term: int, position: int, chain: int, body: bytes, kind: int = EntryKind.GROUP
) -> tuple[EntryMeta, bytes]:
    entry = bytearray(HEADER_BYTES) + body
    meta = seal(entry, kind, index, term, position, 0, chain)
    if kind == EntryKind.MEMBERSHIP:
        meta = EntryMeta(index, term, position, meta.size, kind, 0, meta.chain_crc, MEMBERS)
    return meta, bytes(entry)


def ensure_space(log: LogStore, size: int, *, privileged: bool = False) -> None:
    """Have space for an entry of so many bytes; raises `LogFullError`."""
    need = log.need_to(log.next_position(size) + size, privileged=privileged)
    if not log.has(need):
        log.reserve(need)


def claim(log: LogStore, metas: Sequence[EntryMeta], *, privileged: bool = False) -> None:
    """Have space for entries, whatever that has to wait for; raises `LogFullError`."""
    while not log.claim(metas, privileged=privileged):
        log.reserve(log.need_for(metas, privileged=privileged))


class LoggedModel:
    """The log and, in `entries`, what was appended to it and not truncated."""

    def __init__(self, disk: Disk, segment_bytes: int = SEGMENT_BYTES, reserve_bytes: int = 1024) -> None:
        self.disk = disk
        self.segment_bytes = segment_bytes
        self.reserve_bytes = reserve_bytes
        self.entries: list[tuple[EntryMeta, bytes]] = []
        self.snapshots: SnapshotStore
        self.log: LogStore
        self.recovery: Recovery
        self.open()

    def open(self) -> Recovery:
        self.snapshots = SnapshotStore.open(self.disk)
        self.log, self.recovery = LogStore.open(
            self.disk, segment_bytes=self.segment_bytes, snapshots=self.snapshots, reserve_bytes=self.reserve_bytes
        )
        return self.recovery

    def append(self, body: bytes = b"x", term: int = 1, kind: int = EntryKind.GROUP) -> EntryMeta:
        if kind == EntryKind.MEMBERSHIP:
            body = encode_membership(MEMBERS)
        size = HEADER_BYTES + len(body)
        ensure_space(self.log, size)
        position = self.log.next_position(size)
        meta, data = make_entry(self.log.last_index + 1, term, position, self.log.last_chain, body, kind)
        self.write([meta], data, privileged=False)
        self.entries.append((meta, data))
        return meta

    def write(self, metas: list[EntryMeta], data: bytes | list[bytes], *, privileged: bool = True) -> None:
        """Append entries that are not the model's."""
        claim(self.log, metas, privileged=privileged)
        self.log.append(metas, data)

    def fill(self, rng: random.Random, count: int, term: int = 1, largest: int = 900) -> None:
        for _ in range(count):
            self.append(rng.randbytes(rng.randint(0, largest)), term)

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
        """A trim with all that follows from it."""
        self.log.trim(position)
        self.log.sync_mark()
        self.log.remove_trimmed()

    def replacements(self, first_index: int, bodies: list[bytes], term: int) -> list[tuple[EntryMeta, bytes]]:
        """Entries of another leader, the first of them in the place of `first_index`."""
        entries: list[tuple[EntryMeta, bytes]] = []
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

    def replace(self, entries: list[tuple[EntryMeta, bytes]], *, privileged: bool = False) -> None:
        """What a follower does with entries that replace the end of its log."""
        metas = [meta for meta, _ in entries]
        claim(self.log, metas, privileged=privileged)
        self.truncate(metas[0].index)
        self.write(metas, [data for _, data in entries], privileged=privileged)
        self.entries += entries

    def forget_from(self, first_index: int) -> None:
        self.entries = [entry for entry in self.entries if entry[0].index < first_index]

    def snapshot(self, position: int, content: bytes = b"state") -> SnapshotMeta:
        """A snapshot at a segment start that lies in the log."""
        before = [meta for meta, _ in self.entries if meta.position < position]
        last = before[-1]
        meta = SnapshotMeta(position, last.index, last.term, last.chain_crc, MEMBERS)
        writer = self.snapshots.begin(meta)
        writer.write(content)
        writer.commit()
        return meta

    def committed_bytes(self, begin: int, end: int) -> bytes:
        """What the log's files must hold, blanks included."""
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
        """The log holds exactly the entries, from `first_index` on."""
        log = self.log
        kept = [entry for entry in self.entries if first_index is None or entry[0].index >= first_index]
        assert log.last_index == (kept[-1][0].index if kept else log.first_index - 1)
        for meta, data in kept:
            assert log.meta(meta.index) == meta
            assert log.term_at(meta.index) == meta.term
            assert log.position_at(meta.index) == meta.position
            assert log.index_at(meta.position) == meta.index
            assert log.read(meta.position, meta.size) == data
        if kept:
            last = kept[-1][0]
            assert (log.last_term, log.last_chain) == (last.term, last.chain_crc)
            bases = {meta.position for meta in self.snapshots.list() if meta.last_index == last.index}
            assert log.end_position in {last.end, *bases}
        index = kept[0][0].index if kept else log.last_index + 1
        while index <= log.last_index:
            metas, data = log.read_entries(index, 2000, verify=True)
            assert metas == [meta for meta, _ in self.entries if index <= meta.index < index + len(metas)]
            assert data == b"".join(data for meta, data in self.entries if index <= meta.index < index + len(metas))
            index += len(metas)


def left_in_segment(log: LogStore) -> int:
    return log.segment_bytes - log.end_position % log.segment_bytes


def body_leaving(log: LogStore, left: int) -> bytes:
    """A body whose entry ends `left` bytes before the segment's end."""
    assert left == 0 or left >= BLANK_BYTES
    return bytes(left_in_segment(log) - HEADER_BYTES - left)
