"""Key index: its files, filled in log order by one worker.

A checkpoint, `keyindex/checkpoint`, says up to which log position the files are durable. If it is missing or invalid,
or a file lacks what it says, the index starts over from the first kept position of the log. Nothing here is replicated
and nothing waits for it: queries search the log itself for the part that is not indexed yet.
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
from dledger.store.unreadable import is_lost
from dledger.types import EntryKind
from dledger_broker.views.checkpoint import read_checked, write_checked
from dledger_broker.views.keyfile import (
    ActiveIndexFile,
    IndexDamageError,
    IndexHeader,
    IndexLayout,
    SealedIndexFile,
    key_hash,
)
from dledger_broker.views.keyscan import scan_keys

DIRECTORY: Final = "keyindex"
CHECKPOINT: Final = f"{DIRECTORY}/checkpoint"
SLOTS_EVERY_ENTRIES: Final = 1_000_000
"""Number of entries missing in the slots on disk at which the slots are written. A start after a crash reads at most
about that many again.
"""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_logger = logging.getLogger(__name__)


class IndexCheckpoint(msgspec.Struct, frozen=True):
    """Content of the checkpoint.

    - `position`: log position up to which records are indexed.
    - `incarnation`: incarnation of the data directory.
    - `sealed`: names of the full files.
    - `name`, `header`: the active file (None: none) and its header.
    - `slots_entries`: number of the entry up to which its slots on disk are right.
    - `last_sum`: checksum of its last group of entries.
    - `format`: files of another format have no checksums and are made anew.
    """

    position: int
    incarnation: str
    sealed: tuple[str, ...] = ()
    name: str | None = None
    header: IndexHeader = IndexHeader()
    slots_entries: int = 1
    last_sum: int = 0
    format: int = 0


FORMAT: Final = 1
_NO_CHECKPOINT: Final = IndexCheckpoint(0, "")


def iter_block(data: bytes, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield the entries in a piece of the log that starts with an entry.

    Each is (first byte of records, end of records, log position after the entry). A blank is an entry without records.
    An entry that the piece cuts off ends the iteration. Raises `CorruptionError` if the bytes are not entries.
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
    """All files. Every call blocks. No two calls may run at the same time (a `ViewWriter` ensures that)."""

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
        """True if a sync has failed: the page cache proves nothing any more, and nothing is synced again before `load`
        or `wipe`.
        """

    def load(self, incarnation: str) -> int:
        """Open the files if they belong to this incarnation of the data directory.

        Return the log position up to which records are indexed.
        """
        self.close()
        self._sealed.clear()
        self._incarnation = incarnation
        checkpoint = read_checked(self._disk, CHECKPOINT, IndexCheckpoint)
        try:
            is_usable = checkpoint is not None and (checkpoint.incarnation, checkpoint.format) == (incarnation, FORMAT)
            if checkpoint is not None and is_usable:
                self._open(checkpoint)
            else:
                checkpoint = None
        except (OSError, struct.error, ValueError, IndexDamageError) as error:
            if isinstance(error, OSError) and not is_lost(error):
                raise
            _logger.warning("event=key_index_rebuilt reason=%r", str(error))
            checkpoint = None
        if checkpoint is None:
            self.wipe()
        return self.position

    def wipe(self) -> None:
        """Remove everything. The index starts over at position 0."""
        self.close()
        self._sealed.clear()
        self._slots_entries = 1
        self.position = 0
        self._checkpoint = _NO_CHECKPOINT
        self._disk.rmtree(DIRECTORY)

    def add_block(self, data: bytes, position: int) -> int:
        """Index the whole entries of a piece of the log. Return the log position after the last of them.

        Raises `CorruptionError` if the bytes are not entries or records.
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
        """Return the physical offsets of at most `limit` records that may have the key, newest first.

        Raises `IndexDamageError` if the files are not what was written, so that the result could be incomplete.
        """
        wanted = key_hash(topic, key)
        found: list[int] = []
        files: list[ActiveIndexFile | SealedIndexFile] = [*self._sealed]
        if self._active is not None:
            files.append(self._active)
        for file in reversed(files):
            if file.header.end_timestamp + 1000 < begin_ms:
                continue  # headers lack the lowest time, which a later leader's slow clock may have set
            for position in file.positions(wanted, begin_ms, end_ms):
                if found and found[-1] == position:
                    continue  # several keys of a record have this hash
                found.append(position)
                if len(found) >= limit:
                    return found
        return found

    def save(self) -> None:
        """Make everything that is indexed durable and remember it in the checkpoint."""
        active = self._active
        if active is None:
            self._write_checkpoint(
                IndexCheckpoint(self.position, self._incarnation, self._sealed_names(), format=FORMAT)
            )
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
        """Write the checkpoint again if it has rotted on disk, because a start would build the index anew. Return
        whether it had.
        """
        known = self._checkpoint
        if self.in_doubt or known is _NO_CHECKPOINT or read_checked(self._disk, CHECKPOINT, IndexCheckpoint) == known:
            return False
        self._write_checkpoint(known)
        return True

    def verify(self, file: str, group: int, count: int) -> tuple[str, int]:
        """Read some groups of a file back. If no file has that name, read the first file.

        Return the file and group to continue with, ("", 0) at the end. Raises `IndexDamageError`.
        """
        files: list[SealedIndexFile | ActiveIndexFile] = [*self._sealed]
        if self._active is not None:
            files.append(self._active)
        paths = [index_file.path for index_file in files]
        place = paths.index(file) if file in paths else 0
        if place >= len(files):
            return "", 0
        if files[place].verify(group if file in paths else 0, count):
            return paths[place], (group if file in paths else 0) + count
        return (paths[place + 1], 0) if place + 1 < len(files) else ("", 0)

    def remove_below(self, position: int) -> None:
        """Remove the full files whose records all lie below a log position, first their names from the checkpoint."""
        expired_files = [file for file in self._sealed if file.header.end_position < position]
        if not expired_files:
            return
        self._sealed = [file for file in self._sealed if file not in expired_files]
        kept = tuple(name for name in self._checkpoint.sealed if name in self._sealed_names())
        if kept != self._checkpoint.sealed:
            self._write_checkpoint(msgspec.structs.replace(self._checkpoint, sealed=kept))
        for file in expired_files:
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
            self._active = None  # if a later step fails, the closed file must not be used any more
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
        """Mark the slots on disk as worthless in the checkpoint, because slots are about to be written.

        They may become newer than the checkpoint's entries, and a newer slot would make an entry its own predecessor.
        The next checkpoint says which slots are right.
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
            self.position,
            self._incarnation,
            self._sealed_names(),
            name,
            active.header,
            self._slots_entries,
            active.last_sum,
            FORMAT,
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
            last_sum = checkpoint.last_sum
            self._active = ActiveIndexFile(self._disk, path, self._layout, header, slots_entries, last_sum)
            self._slots_entries = slots_entries
        self._checkpoint = checkpoint
        self.position = checkpoint.position


def _file_name(store_timestamp: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=max(store_timestamp, 0))
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
