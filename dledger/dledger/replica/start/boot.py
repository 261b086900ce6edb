"""Record of the operating system's run, which shows whether the host went down since the last start.

With `flush = "async"` an acknowledgement does not wait for the disk. A process that is killed loses nothing by that,
but a host that goes down may, and so may a sync that fails. `raft/boot` keeps which run of the operating system wrote
the log, and how it was flushed. After a failed sync it names no run, so that the next start counts as one after the
host went down.
"""

from __future__ import annotations

import contextlib
from typing import Literal, NamedTuple

import msgspec

from dledger.store.disk import LACKING, Disk, write_file_durably
from dledger.store.unreadable import salvage
from dledger_base.loop_guard import excepted

PATH = "raft/boot"
ACCEPT_LOSS_PATH = "raft/accept-loss"


class BootRecord(msgspec.Struct, frozen=True):
    """Run of the operating system in which the log was written, and how it was flushed.

    `boot_id` is opaque. It is empty on platforms that have no id of a run; then all runs count as the same.
    """

    boot_id: str
    flush: Literal["sync", "async"]


class Start(NamedTuple):
    """Result of `note_boot`. `may_vote` is False if acknowledged entries may have been lost since the previous start.

    If `may_vote` is False, or if the disk is full, the start is not `recorded` yet. `record_boot` has to record it once
    this replica may vote.
    """

    may_vote: bool
    recorded: bool


def note_boot(disk: Disk, now: BootRecord, *, clean: bool) -> Start:
    """Record this start. An `accept_loss` counts for one start, whether it was needed or not. Raises `OSError`."""
    previous = _read(disk, now)
    may_have_lost = previous is not None and previous.flush == "async" and previous.boot_id != now.boot_id and not clean
    if may_have_lost and not is_loss_accepted(disk):
        return Start(may_vote=False, recorded=False)
    recorded = previous == now
    if not recorded:
        try:
            record_boot(disk, now)
            recorded = True
        except OSError as error:
            if error.errno not in LACKING:
                raise
    if is_loss_accepted(disk):
        disk.unlink(ACCEPT_LOSS_PATH)
        disk.sync_dir("raft")
    return Start(may_vote=True, recorded=recorded)


class BootFile:
    """The file `raft/boot` of a running node. Its content is trustworthy once this start is `recorded`."""

    def __init__(self, disk: Disk, now: BootRecord, *, recorded: bool) -> None:
        self._disk = disk
        self._now = now
        self._is_distrusted = False
        self.recorded = recorded

    def record(self) -> None:
        """Record this start, unless a sync has failed since. Blocks; raises `OSError`."""
        if not self._is_distrusted:
            record_boot(self._disk, self._now)
            self.recorded = True

    def distrust(self) -> None:
        """Note that a sync of the log failed. Blocks."""
        if self._now.flush == "async":
            self._is_distrusted = True
            with excepted("the node ends, and the native part reports a failed sync on the loop"):
                distrust_boot(self._disk)

    def scrub(self) -> int:
        """Write the record anew if it has rotted, and return the number of rotten records (0 or 1).

        Blocks; raises `OSError`.

        A node with `flush = "async"` that finds a rotten record when it starts must assume that its host went down.
        """
        if not self.recorded or self._is_distrusted or _read(self._disk, self._now) == self._now:
            return 0
        self.record()
        return 1


def record_boot(disk: Disk, now: BootRecord) -> None:
    """Record that everything acknowledged was written in this run of the operating system."""
    write_file_durably(disk, PATH, msgspec.json.encode(now))


def distrust_boot(disk: Disk) -> None:
    """Let the next start count as one after the host went down, because a sync failed.

    Some file systems show the bytes of the platter after a failed sync: acknowledged entries are gone although the host
    is up. Without this note the node would vote as if it still had them. The page cache is enough for the note, because
    a start in another run of the operating system needs none. It takes no space if the file is there. A disk that does
    not take even this note is not relied on either way, so errors are ignored.
    """
    with contextlib.suppress(OSError):
        file = disk.open(PATH, create=True)
        try:
            file.pwrite(msgspec.json.encode(_SYNC_FAILED).ljust(file.size()), 0)
        finally:
            file.close()


_SYNC_FAILED = BootRecord("a sync failed", "async")


def accept_loss(disk: Disk) -> None:
    """Let the next start vote although acknowledged entries may be missing. This is an operator's decision."""
    disk.mkdir("raft")
    disk.open(ACCEPT_LOSS_PATH, create=True).close()
    disk.sync_dir("raft")


def is_loss_accepted(disk: Disk) -> bool:
    """Return whether an operator has accepted a loss since the last start."""
    return disk.exists(ACCEPT_LOSS_PATH)


def _read(disk: Disk, now: BootRecord) -> BootRecord | None:
    """Return the record of the previous start.

    An unreadable record counts as from another run of the operating system.
    """
    try:
        file = disk.open(PATH)
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(salvage(file, file.size(), 0), type=BootRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return BootRecord("not readable", now.flush)
    finally:
        file.close()
