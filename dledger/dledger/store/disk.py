"""The disk as the store sees it: few calls, so that a simulated disk can stand in for the real one.

Every durable byte of the log goes through `Disk` and `File`.  All calls block; what may run on the event loop and what
only on a worker thread is the caller's business.  Errors are `OSError` with `errno` set (ENOSPC, EIO, …).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file.  Offsets and sizes are bytes."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; short only at the end of the file."""

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """As `pread`, but None if not all of it is in the page cache (or the platform cannot tell)."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of `data`; a short write is continued, an error raises."""

    def datasync(self) -> None:
        """fdatasync (F_FULLFSYNC on macOS): returns only when the bytes are on stable storage."""

    def reserve(self, offset: int, size: int) -> None:
        """Make sure that later writes to the range cannot fail for lack of space; ENOSPC is raised here."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A directory tree.  Paths are absolute or relative to the disk's root, `/`-separated."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; missing without `create` raises FileNotFoundError."""

    def listdir(self, path: str) -> list[str]: ...

    def exists(self, path: str) -> bool: ...

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def rmtree(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and unlinks in a directory durable."""

    def usage(self, path: str) -> tuple[int, int]:
        """(bytes free for us, bytes in all) of the file system that holds `path`."""
