"""Drops the end of a file and keeps its space.

Entries that replace a void tail need its space, and on a full disk what is given back is gone: others take it.  So a
tail is not cut off but overwritten with zeros, which are no entry, up to where the last entry ended.  File systems that
write in place (ext4, xfs, tmpfs) refuse no write to space that a file has; one that copies on write may, and then the
tail is cut off after all.

Power may be lost at any moment of this.  The zeros reach the disk sector by sector in any order, so what is found then
is the old tail with holes.  No order of writing would prevent that, and none is needed:

1. The durable mark was lowered to the cut, and synced, before: a hole above it is a torn write, not corruption.
2. A recovery ends the log at the first entry that does not verify, and cuts off, durably, whatever follows it before
   anything is appended.  It finds the old log, the cut one, or one that ends between the two, and entries behind a
   hole are never joined to anything.
3. Nothing is appended before the zeros are synced.  So no entry that is written again byte by byte can be followed by
   one that was dropped and would continue its chain.

They are written from the cut onwards, so that a process that is killed, which loses nothing of the page cache, mostly
leaves the cut log: the header of the first dropped entry goes first.
"""

from __future__ import annotations

from dledger.store.disk import FULL, File

_STEP_BYTES = 1 << 20
_ZEROS = bytes(_STEP_BYTES)


def erase(file: File, begin: int, end: int) -> bool:
    """Overwrite the bytes from `begin` to before `end`, behind which the file holds nothing of worth, durably.

    False if the file system had no space for that: the file then ends at `begin`, durably, and its space is gone.
    Blocks.  Raises `OSError` on any other failure.
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
    """Cut a file to `size`, durably, and keep the space of up to `keep_bytes` behind that, erased."""
    found = file.size()
    kept = min(found, size + keep_bytes)
    if found > kept:
        file.truncate(kept)
    erase(file, size, kept)
