"""The files of the key index, filled in log order by one worker.

A checkpoint, `keyindex/checkpoint`, says up to which log position the files are durable; a missing or invalid one, or a
file that lacks what it says, means that the index starts over from the first kept position of the log.  Nothing here
is replicated and nothing waits for it: what is not indexed yet is searched for in the log itself.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from dledger.format import blank_length, parse_entry
from dledger.store.disk import Disk
from dledger.types import EntryKind
from dledger_broker.views.checked import read_checked, write_checked
from dledger_broker.views.keyfile import (
    ActiveIndexFile,
    IndexHeader,
    IndexLayout,
    SealedIndexFile,
    key_hash,
)
from dledger_broker.views.keyscan import scan_keys

DIRECTORY: Final = "keyindex"
CHECKPOINT: Final = f"{DIRECTORY}/checkpoint"
SLOTS_EVERY_ENTRIES: Final = 1_000_000
"""The slots are written when so many entries are missing in them: what a start after a crash has to read again."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_logger = logging.getLogger(__name__)


class IndexCheckpoint(msgspec.Struct, frozen=True):
    """`position` of the log up to which records are indexed; the names of the full files; the active file (None: none),
    its header, and up to which entry number its slots on disk are right.  `incarnation` is that of the data directory.
    """

    position: int
    incarnation: str
    sealed: tuple[str, ...] = ()
    name: str | None = None
    header: IndexHeader = IndexHeader()
    slots_entries: int = 1


_NO_CHECKPOINT: Final = IndexCheckpoint(0, "")


def iter_block(data: bytes, position: int) -> Iterator[tuple[int, int, int]]:
    """The entries in a piece of the log that starts with one: (first byte of records, end of records, log position
    after the entry).  A blank is an entry without records; an entry that the piece cuts off ends it.

    Raises `CorruptionError` if the bytes are no entries.
    """
    offset, end = 0, len(data)
    while offset < end:
        blank = blank_length(data, offset, end)
        if blank is not None:
            yield offset, offset, position + offset + blank
            return
        entry = parse_entry(data, offset, end, None)
        if entry is None:
            return
        records_end = offset + entry.size - entry.channel if entry.kind == EntryKind.GROUP else offset + 48
        yield offset + 48, records_end, position + offset + entry.size
        offset += entry.size


class KeyIndex:
    """All files.  Every call blocks; none may run beside another (a `ViewWriter` sees to that)."""

    def __init__(self, disk: Disk, layout: IndexLayout) -> None:
        self._disk = disk
        self._layout = layout
        self._sealed: list[SealedIndexFile] = []
        self._active: ActiveIndexFile | None = None
        self._slots_entries = 1
        self._checkpoint = _NO_CHECKPOINT
        self._incarnation = ""
        self.position = 0
        self.in_doubt = False
        """A sync has failed: the page cache proves nothing any more, and nothing is synced again before `load`."""

    def load(self, incarnation: str) -> int:
        """Open the files if they belong to this incarnation of the data directory; returns the log position up to
        which records are indexed.
        """
        self.close()
        self._sealed.clear()
        self._incarnation = incarnation
        checkpoint = read_checked(self._disk, CHECKPOINT, IndexCheckpoint)
        try:
            if checkpoint is not None and checkpoint.incarnation == incarnation:
                self._open(checkpoint)
            else:
                checkpoint = None
        except (FileNotFoundError, struct.error, ValueError) as error:
            _logger.warning("event=key_index_rebuilt reason=%r", str(error))
            checkpoint = None
        if checkpoint is None:
            self.wipe()
        return self.position

    def wipe(self) -> None:
        """Remove everything; the index starts over at position 0."""
        self.close()
        self._sealed.clear()
        self._slots_entries = 1
        self.position = 0
        self._checkpoint = _NO_CHECKPOINT
        self._disk.rmtree(DIRECTORY)

    def add_block(self, data: bytes, position: int) -> int:
        """Index the whole entries of a piece of the log; returns the log position after the last of them.

        Raises `CorruptionError` if the bytes are no entries or records.
        """
        spans: list[tuple[int, int]] = []
        indexed = self.position
        for start, end, after in iter_block(data, position):
            indexed = after
            spans.append((start, end))
        keys = scan_keys(data, spans)
        while len(keys):
            active = self._writable(int(keys["stored_ms"][0]))
            room = active.room
            active.add(keys[:room])
            keys = keys[room:]
        self.position = indexed
        return indexed

    def positions(self, topic: str, key: bytes, begin_ms: int, end_ms: int, limit: int) -> list[int]:
        """Physical offsets of at most `limit` records that may have the key, newest first."""
        wanted = key_hash(topic, key)
        found: list[int] = []
        files: list[ActiveIndexFile | SealedIndexFile] = [*self._sealed]
        if self._active is not None:
            files.append(self._active)
        for file in reversed(files):
            if file.header.end_timestamp + 1000 < begin_ms:
                continue  # no header tells the lowest time, where a later leader's clock was behind the first one's
            for position in file.positions(wanted, begin_ms, end_ms):
                found.append(position)
                if len(found) >= limit:
                    return found
        return found

    def save(self) -> None:
        """Make everything that is indexed durable and remember it."""
        active = self._active
        if active is None:
            self._write_checkpoint(IndexCheckpoint(self.position, self._incarnation, self._sealed_names()))
            return
        self._sync_entries(active)
        self._write_checkpoint(self._checkpoint_of(active))
        if active.header.next_entry - self._slots_entries >= SLOTS_EVERY_ENTRIES:
            self.save_slots()

    def save_slots(self) -> None:
        """Write the active file's slots too."""
        active = self._active
        if active is None or self._slots_entries == active.header.next_entry:
            return
        self._distrust_slots()
        active.write_slots()
        self._sync_entries(active)
        self._slots_entries = active.header.next_entry
        self._write_checkpoint(self._checkpoint_of(active))

    def scrub(self) -> bool:
        """Write the checkpoint again if it has rotted on disk, where a start would build the index anew."""
        known = self._checkpoint
        if self.in_doubt or known is _NO_CHECKPOINT or read_checked(self._disk, CHECKPOINT, IndexCheckpoint) == known:
            return False
        self._write_checkpoint(known)
        return True

    def remove_below(self, position: int) -> None:
        """Remove the full files whose records all lie below a log position, after their names in the checkpoint."""
        doomed = [file for file in self._sealed if file.header.end_position < position]
        if not doomed:
            return
        self._sealed = [file for file in self._sealed if file not in doomed]
        kept = tuple(name for name in self._checkpoint.sealed if name in self._sealed_names())
        if kept != self._checkpoint.sealed:
            self._write_checkpoint(msgspec.structs.replace(self._checkpoint, sealed=kept))
        for file in doomed:
            self._disk.unlink(file.path)

    def close(self) -> None:
        """Close the active file."""
        if self._active is not None:
            self._active.close()
            self._active = None
        self.in_doubt = False

    def _writable(self, store_timestamp: int) -> ActiveIndexFile:
        active = self._active
        if active is not None and active.full:
            self._distrust_slots()
            active.write_slots()
            self._sync_entries(active)
            self._sealed.append(SealedIndexFile(self._disk, active.path, self._layout))
            self._active = None  # whatever fails from here on, a closed file is not asked any more
            active.close()
            active = None
        if active is None:
            self._make_directory()
            path = f"{DIRECTORY}/{self._new_name(store_timestamp)}"
            active = ActiveIndexFile(self._disk, path, self._layout, IndexHeader(), 1)
            self._active, self._slots_entries = active, 1
            self._disk.sync_dir(DIRECTORY)
        return active

    def _sync_entries(self, active: ActiveIndexFile) -> None:
        if self.in_doubt:
            raise OSError(errno.EIO, "a sync failed before: what it left out is to be written again", active.path)
        self.in_doubt = True
        active.sync_entries()
        self.in_doubt = False

    def _distrust_slots(self) -> None:
        """Slots are about to be written: those on disk are worth nothing until the next checkpoint says how much.

        They may become newer than that checkpoint's entries, and such a slot would make an entry its own predecessor.
        """
        if self._slots_entries > 1:
            self._write_checkpoint(msgspec.structs.replace(self._checkpoint, slots_entries=1))
            self._slots_entries = 1

    def _make_directory(self) -> None:
        if not self._disk.exists(DIRECTORY):
            self._disk.mkdir(DIRECTORY)
            self._disk.sync_dir(".")

    def _new_name(self, store_timestamp: int) -> str:
        name = _file_name(store_timestamp)
        newest = max((file.path.rpartition("/")[2] for file in self._sealed), default="")
        return name if name > newest else f"{int(newest) + 1:017d}"

    def _checkpoint_of(self, active: ActiveIndexFile) -> IndexCheckpoint:
        name = active.path.rpartition("/")[2]
        return IndexCheckpoint(
            self.position, self._incarnation, self._sealed_names(), name, active.header, self._slots_entries
        )

    def _sealed_names(self) -> tuple[str, ...]:
        return tuple(file.path.rpartition("/")[2] for file in self._sealed)

    def _write_checkpoint(self, checkpoint: IndexCheckpoint) -> None:
        self._make_directory()
        write_checked(self._disk, CHECKPOINT, checkpoint)
        self._checkpoint = checkpoint

    def _open(self, checkpoint: IndexCheckpoint) -> None:
        expected = {*checkpoint.sealed, checkpoint.name} - {None}
        found = {name for name in self._disk.listdir(DIRECTORY) if name.isdigit()}
        for name in found - expected:
            self._disk.unlink(f"{DIRECTORY}/{name}")
        for name in checkpoint.sealed:
            file = SealedIndexFile(self._disk, f"{DIRECTORY}/{name}", self._layout)
            self._sealed.append(file)
        if checkpoint.name is not None:
            path = f"{DIRECTORY}/{checkpoint.name}"
            header, slots_entries = checkpoint.header, checkpoint.slots_entries
            self._active = ActiveIndexFile(self._disk, path, self._layout, header, slots_entries)
            self._slots_entries = slots_entries
        self._checkpoint = checkpoint
        self.position = checkpoint.position


def _file_name(store_timestamp: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=max(store_timestamp, 0))
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
