"""Checkpoint of the consume queues: the log position up to which their files are durable, and the units held there.

Two files, `views/stamped-0` and `views/stamped-1`, are replaced in turn. The valid file with the higher sequence number
counts. A file is crc32 of the content (4 bytes, big-endian), then the content, `Checkpoint`, in MessagePack.

Versions whose units have no stamps use the names `views/checkpoint-0` and `-1`. Neither version finds the other's
files, so a node that changes its version makes the queues' files anew. This version cannot verify units without
stamps. An old version would take a stamp for a part of the tag code.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dledger.store.disk import Disk, write_file_durably
from dledger.store.unreadable import is_lost, is_lost_name
from dledger_base.checksum import crc32

_CRC_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T", bound=msgspec.Struct)


def write_checked(disk: Disk, path: str, content: msgspec.Struct) -> None:
    """Replace a file. Blocks until it is durable."""
    payload = _encode(content)
    write_file_durably(disk, path, crc32(payload).to_bytes(_CRC_BYTES, "big") + payload)


def read_checked(disk: Disk, path: str, kind: type[T]) -> T | None:
    """Return the content of a file, None if it is missing, damaged, unreadable or of another form."""
    try:
        file = disk.open(path)
    except OSError as error:
        if not is_lost(error):
            raise
        return None
    try:
        data = file.pread(file.size(), 0)
    except OSError as error:
        if not is_lost(error):
            raise
        return None
    finally:
        file.close()
    if len(data) < _CRC_BYTES or crc32(data[_CRC_BYTES:]).to_bytes(_CRC_BYTES, "big") != data[:_CRC_BYTES]:
        return None
    try:
        return msgspec.msgpack.decode(data[_CRC_BYTES:], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


DIRECTORY = "views"
_COPIES = (f"{DIRECTORY}/stamped-0", f"{DIRECTORY}/stamped-1")
_WITHOUT_STAMPS = (f"{DIRECTORY}/checkpoint-0", f"{DIRECTORY}/checkpoint-1")


class TopicExtent(msgspec.Struct, frozen=True, array_like=True):
    """Content of a topic's files: (queue id, first offset, offset after the last) of its queues."""

    topic: str
    created_position: int
    queues: list[tuple[int, int, int]]


class Checkpoint(msgspec.Struct, frozen=True):
    """A log position below which all records' units are durable, and the units that the queues held there (`topics`).

    `incarnation` is that of the data directory. If a log is set aside, its checkpoint is worth nothing for the next
    log.
    """

    position: int
    topics: list[TopicExtent]
    incarnation: str
    sequence: int = 0

    def extents(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return (first offset, offset after the last) by (topic, queue id)."""
        return {
            (extent.topic, queue_id): (start, end) for extent in self.topics for queue_id, start, end in extent.queues
        }


def load_checkpoint(disk: Disk) -> Checkpoint | None:
    """Return the newest valid checkpoint, None without a valid checkpoint."""
    found = [checkpoint for path in _COPIES if (checkpoint := read_checked(disk, path, Checkpoint)) is not None]
    return max(found, key=lambda checkpoint: checkpoint.sequence, default=None)


def rotten_copies(disk: Disk) -> list[str]:
    """Return the paths of the copies that exist, or cannot be looked up, and do not verify. Blocks."""
    return [path for path in _COPIES if _may_exist(disk, path) and read_checked(disk, path, Checkpoint) is None]


def _may_exist(disk: Disk, path: str) -> bool:
    try:
        return disk.exists(path)
    except OSError as error:
        if not is_lost_name(error):
            raise
        return True


def save_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the older copy. Blocks for two syncs."""
    if not disk.exists(DIRECTORY):
        disk.mkdir(DIRECTORY)
        disk.sync_dir(".")
    write_checked(disk, _COPIES[checkpoint.sequence % 2], checkpoint)


def remove_checkpoint(disk: Disk) -> None:
    """Remove the checkpoint, also that of an old version, so that no view file is trusted any more."""
    if disk.exists(DIRECTORY):
        for path in (*_COPIES, *_WITHOUT_STAMPS):
            disk.unlink(path)
        disk.sync_dir(DIRECTORY)
