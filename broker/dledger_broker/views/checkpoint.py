"""Checkpoint of the consume queues: the log position up to which their files are durable, and the units held there.

Two files, `views/stamped-0` and `views/stamped-1`, are replaced in turn. The valid file with the higher sequence number
counts. A file is `Checkpoint` in the form of `views/checked.py`.

Versions whose units have no stamps use the names `views/checkpoint-0` and `-1`. Neither version finds the other's
files, so a node that changes its version makes the queues' files anew. This version cannot verify units without
stamps. An old version would take a stamp for a part of the tag code.
"""

from __future__ import annotations

import msgspec

from dledger.store.disk import Disk
from dledger.store.unreadable import is_lost_name
from dledger_broker.views.checked import read_checked, write_checked

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
