"""Reads that a disk refuses, which count as rot: EIO of a bad sector, EBADMSG of a wrong file system checksum.

Unreadable bytes and bytes that fail their checksum are treated alike. Code that verifies what it reads uses `salvage`,
which returns stand-in bytes that fail every check. Code that does not verify gets a `CorruptionError`.

A name that the disk cannot look up is lost as well. That is an error, unless the file can be made anew
(`is_lost_name`, `is_lost`).
"""

from __future__ import annotations

import errno
import hashlib
from typing import Final, Protocol

from dledger.errors import CorruptionError, LogError, StorageError
from dledger.store.disk import Buffer

UNREADABLE: Final = (errno.EIO, errno.EBADMSG)
"""Error numbers of a read that count as rot."""
_LOST_NAME: Final = (*UNREADABLE, getattr(errno, "EUCLEAN", 117))
"""Error numbers of a file whose name or inode cannot be read. Linux has EUCLEAN for a damaged file system."""
PAGE_BYTES: Final = 4096
"""Size in bytes of a page. The system reads whole pages, and a page that is written whole is not read first."""
MAX_FAILED_READS: Final = 64
"""Maximum number of failed reads in `salvage`, because each may take seconds.

After that, pieces are not divided further.
"""

_STAND_IN: Final = hashlib.shake_128(b"bytes that cannot be read").digest(PAGE_BYTES)


class Readable(Protocol):
    """The part of a file's interface that reads."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read bytes, as `dledger.store.disk.File.pread` does."""


class Writable(Readable, Protocol):
    """File that can be read and written."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write bytes, as `dledger.store.disk.File.pwrite` does."""


def is_unreadable(error: object) -> bool:
    """Return whether a read failed because of the bytes that it asked for."""
    return isinstance(error, OSError) and error.errno in UNREADABLE


def is_lost_name(error: object) -> bool:
    """Return whether a file could not be found or opened because its name or inode cannot be read.

    Only files that can be made anew from others may then count as missing.
    """
    return isinstance(error, OSError) and error.errno in _LOST_NAME


def is_lost(error: object) -> bool:
    """Return whether a file is missing or cannot be read. Only files that can be made anew may be treated so."""
    return isinstance(error, FileNotFoundError) or is_lost_name(error)


def read_error(action: str, error: OSError) -> LogError:
    """Return the error for a failed read: `CorruptionError` if its bytes have rotted, else `StorageError`."""
    if is_unreadable(error):
        return CorruptionError(f"{action} failed, so the bytes count as rotten: {error}")
    return StorageError(f"{action} failed: {error}")


def salvage(file: Readable, size: int, offset: int) -> bytes:
    """Read like `pread`, with stand-in bytes for unreadable pages that fail every check.

    Only for a caller that verifies the result. Raises `OSError` on any other failure.
    """
    try:
        return file.pread(size, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
    return b"".join(_Salvage(file).read(size, offset))


class _Salvage:
    """One unreadable range, which is halved until its unreadable pages are found."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._failed_reads = 0

    def read(self, size: int, offset: int) -> list[bytes]:
        """Return the pieces of a range that failed as a whole."""
        first, last = offset // PAGE_BYTES, (offset + size - 1) // PAGE_BYTES
        if first >= last or self._failed_reads >= MAX_FAILED_READS:
            return [_stand_in(size)]
        middle = (first + last + 1) // 2 * PAGE_BYTES
        return [*self._read_half(middle - offset, offset), *self._read_half(offset + size - middle, middle)]

    def _read_half(self, size: int, offset: int) -> list[bytes]:
        try:
            return [self._file.pread(size, offset)]
        except OSError as error:
            if not is_unreadable(error):
                raise
        self._failed_reads += 1
        return self.read(size, offset)


def _stand_in(size: int) -> bytes:
    return (_STAND_IN * (size // PAGE_BYTES + 1))[:size]


def overwrite(file: Writable, data: Buffer, offset: int) -> None:
    """Write bytes, even if some of their pages are unreadable.

    Before the system writes a part of a page, it reads the page. Unreadable pages are written whole, together with the
    readable bytes around. So nobody else may write to these pages meanwhile.
    """
    end = offset + len(data)
    begin, stop = offset - offset % PAGE_BYTES, end + -end % PAGE_BYTES
    try:
        file.pwrite(data, offset)
    except OSError as error:
        if not is_unreadable(error) or not any(_is_bad_page(file, at) for at in (begin, stop - PAGE_BYTES)):
            raise
        prefix, suffix = salvage(file, offset - begin, begin), salvage(file, stop - end, end)
        file.pwrite(b"".join((prefix.ljust(offset - begin, b"\0"), data, suffix)), begin)


def renew_page(file: Writable, offset: int) -> None:
    """Write the page that holds a byte anew if it is unreadable, so that the file can be cut there.

    The stand-in bytes fail every check.
    """
    begin = offset - offset % PAGE_BYTES
    if begin < offset and _is_bad_page(file, begin):  # the system reads the page in which a file is cut
        file.pwrite(salvage(file, PAGE_BYTES, begin), begin)


def _is_bad_page(file: Readable, begin: int) -> bool:
    try:
        file.pread(PAGE_BYTES, begin)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return True
    return False
