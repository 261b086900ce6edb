"""Checkpoint of the consume queues: the log position up to which their files are durable, and the units held there.

Two files, `views/checkpoint-0` and `views/checkpoint-1`, are replaced in turn; the valid one with the higher sequence
number counts.  A file is `Checkpoint` in the form of `views/checked.py`.
"""

from __future__ import annotations

import msgspec

from dledger.store.disk import Disk
from dledger_broker.views.checked import read_checked, write_checked

DIRECTORY = "views"
_COPIES = (f"{DIRECTORY}/checkpoint-0", f"{DIRECTORY}/checkpoint-1")


class TopicExtent(msgspec.Struct, frozen=True, array_like=True):
    """What the files of a topic hold: (queue id, first offset, offset after the last) of its queues."""

    topic: str
    created_position: int
    queues: list[tuple[int, int, int]]


class Checkpoint(msgspec.Struct, frozen=True):
    """All units of records below `position` are durable; at that position the queues held `topics`.

    `incarnation` is that of the data directory: a log that was set aside takes its views' worth with it.
    """

    position: int
    topics: list[TopicExtent]
    incarnation: str
    sequence: int = 0

    def extents(self) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, queue id) -> (first offset, offset after the last)."""
        return {
            (extent.topic, queue_id): (start, end) for extent in self.topics for queue_id, start, end in extent.queues
        }


def load_checkpoint(disk: Disk) -> Checkpoint | None:
    """The newest valid checkpoint, or None."""
    found = [checkpoint for path in _COPIES if (checkpoint := read_checked(disk, path, Checkpoint)) is not None]
    return max(found, key=lambda checkpoint: checkpoint.sequence, default=None)


def rotten_copies(disk: Disk) -> list[str]:
    """The copies that are there and do not verify.  Blocks."""
    return [path for path in _COPIES if disk.exists(path) and read_checked(disk, path, Checkpoint) is None]


def save_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace the older copy; blocks for two syncs."""
    if not disk.exists(DIRECTORY):
        disk.mkdir(DIRECTORY)
        disk.sync_dir(".")
    write_checked(disk, _COPIES[checkpoint.sequence % 2], checkpoint)


def remove_checkpoint(disk: Disk) -> None:
    """From here on no view file is trusted."""
    if disk.exists(DIRECTORY):
        for path in _COPIES:
            disk.unlink(path)
        disk.sync_dir(DIRECTORY)
