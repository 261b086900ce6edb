"""Erasing: drops the end of a file and keeps its space.

A follower drops its last entries when a leader replaces them, and recovery drops an invalid tail. New entries need the
space of the dropped tail. On a full disk other files would take that space if it were given back. So the tail is not
cut off but overwritten with zeros, up to the end of the last dropped entry. Zeros are not a valid entry. File systems
that write in place (ext4, xfs, tmpfs) do not refuse a write to space that a file already has. A file system that copies
on write may refuse it, and then the tail is cut off after all.

Power may be lost during the erasure. The zeros reach the disk sector by sector in any order. A restart may therefore
find the old tail with holes. No order of writing would prevent that, and none is needed:

1. The durable mark was lowered to the cut and synced before the erasure. So a hole above the mark counts as a torn
   write, not as corruption.
2. Recovery ends the log at the first entry that does not verify. It durably cuts off everything behind that before
   anything is appended. It finds the old log, the cut log, or a log that ends between the two. Entries behind a hole
   are never joined to anything.
3. Nothing is appended before the zeros are synced. So if an entry is later written again with the same bytes, no
   dropped entry behind it can continue its chain.

The zeros are written from the cut onwards, so the header of the first dropped entry goes first. If only the process is
killed, the page cache keeps what was written, and a restart mostly finds the cut log.
"""

from __future__ import annotations

from dledger.store.disk import File
from dledger.store.unreadable import is_unreadable, renew_page
from dledger_base.room import FULL

_STEP_BYTES = 1 << 20
_ZEROS = bytes(_STEP_BYTES)


def erase(file: File, begin: int, end: int) -> bool:
    """Overwrite the bytes from `begin` up to `end` with zeros, durably.

    The file must hold no data that is still needed after `end`.

    Returns False if the file system had no space for the zeros. The file then ends at `begin`, durably, and the space
    behind that is given back. Blocks. Raises `OSError` on any other failure.
    """
    if begin >= end:
        return True
    try:
        for at in range(begin, end, _STEP_BYTES):
            file.pwrite(memoryview(_ZEROS)[: end - at], at)
        file.datasync()
    except OSError as error:
        if error.errno not in FULL:
            raise
        file.truncate(begin)
        return False
    return True


def shorten(file: File, size: int, keep_bytes: int) -> None:
    """Erase a file's content from `size` on, durably, and keep up to `keep_bytes` of its space behind `size`."""
    size_found = file.size()
    size_kept = min(size_found, size + keep_bytes)
    if size_found > size_kept:
        try:
            file.truncate(size_kept)
        except OSError as error:
            if not is_unreadable(error):
                raise
            renew_page(file, size_kept)
            file.truncate(size_kept)
    erase(file, size, size_kept)
