"""Whether the operating system went down since the last start.

With `flush = "async"` an acknowledgement does not wait for the disk.  A process that is killed loses nothing by that, a
host that goes down may.  `raft/boot` keeps which run of the operating system wrote the log, and how it was flushed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from dledger.store.disk import FULL, Disk, write_file_durably

PATH = "raft/boot"
ACCEPT_LOSS_PATH = "raft/accept-loss"


class BootRecord(msgspec.Struct, frozen=True):
    """`boot_id` is opaque; empty where the platform tells none, which counts as always the same."""

    boot_id: str
    flush: Literal["sync", "async"]


class Start(NamedTuple):
    """`may_vote` is False if acknowledged entries may have been lost since the start before.

    Then, or if the disk is full, it is not `recorded`: `record_boot` is to do that once this replica may vote.
    """

    may_vote: bool
    recorded: bool


def note_boot(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    """Record this start.  An `accept_loss` counts for one start, whether it was needed or not.  Raises `OSError`."""
    before = _read(disk, now)
    lost = before is not None and before.flush == "async" and before.boot_id != now.boot_id and not clean
    if lost and not is_loss_accepted(disk):
        return Start(may_vote=False, recorded=False)
    recorded = before == now
    if not recorded:
        try:
            record_boot(disk, now)
            recorded = True
        except OSError as error:
            if error.errno not in FULL:
                raise
    if is_loss_accepted(disk):
        disk.unlink(ACCEPT_LOSS_PATH)
        disk.sync_dir("raft")
    return Start(may_vote=True, recorded=recorded)


class BootFile:
    """`raft/boot` while a node runs, which knows what it has to say once this start is `recorded`."""

    def __init__(self, disk: Disk, now: BootRecord, *, recorded: bool) -> None:
        self._disk = disk
        self._now = now
        self.recorded = recorded

    def record(self) -> None:
        """Record this start.  Blocks; raises `OSError`."""
        record_boot(self._disk, self._now)
        self.recorded = True

    def scrub(self) -> int:
        """Write the record anew if it has rotted; returns how many those were.  Blocks; raises `OSError`.

        A node with `flush = "async"` that finds it rotten when it starts doubts what it has, as if its host had gone
        down.
        """
        if not self.recorded or _read(self._disk, self._now) == self._now:
            return 0
        self.record()
        return 1


def record_boot(disk: Disk, now: BootRecord) -> None:
    """Everything acknowledged is here in this run of the operating system."""
    write_file_durably(disk, PATH, msgspec.json.encode(now))


def accept_loss(disk: Disk) -> None:
    """Let the next start vote although acknowledged entries may be missing; an operator's decision."""
    disk.mkdir("raft")
    disk.open(ACCEPT_LOSS_PATH, create=True).close()
    disk.sync_dir("raft")


def is_loss_accepted(disk: Disk) -> bool:
    """Whether an operator said so since the last start."""
    return disk.exists(ACCEPT_LOSS_PATH)


def _read(disk: Disk, now: BootRecord) -> BootRecord | None:
    """The record of the start before; one that cannot be read counts as of another run of the operating system."""
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(file.pread(file.size(), 0), type=BootRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return BootRecord("not readable", now.flush)
    finally:
        file.close()
