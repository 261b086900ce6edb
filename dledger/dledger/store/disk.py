"""The disk as the store sees it: few calls, so that a simulated disk can stand in for the real one.

Every durable byte of the log goes through `Disk` and `File`.  All calls block, so they belong on worker threads; on an
event loop only `pread_nowait`, and `pwrite` of entries (`dledger.loop_guard` holds that).  Errors are `OSError` with
`errno` set (ENOSPC, EIO, …).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from typing import NamedTuple, Protocol

from dledger import native_part
from dledger.loop_guard import disk_work

Buffer = bytes | bytearray | memoryview

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk."""

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_ZEROS = bytes(1 << 20)


class FileStat(NamedTuple):
    """What a directory listing tells of a file: bytes allocated on disk, time of the last write (ms since 1970)."""

    size_on_disk: int
    mtime_ms: int


class DiskSpace(NamedTuple):
    """Bytes of a file system: those that are free for the log, and all that it may have."""

    free_bytes: int
    total_bytes: int

    @property
    def used_ratio(self) -> float:
        """The used share, 0 to 1."""
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


class File(Protocol):
    """An open file.  Offsets and sizes are bytes."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes at `offset`; short only at the end of the file."""

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """As `pread`, but None if not all of it is in the page cache (or the platform cannot tell)."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of `data`; a short write is continued, an error raises."""

    @property
    def descriptor(self) -> int | None:
        """What the system calls the file until it is closed, for the native part; None where the system has none."""

    @property
    def sync_descriptor(self) -> int | None:
        """The descriptor whose fdatasync is all that `datasync` does; None where that is something else."""

    def datasync(self) -> None:
        """fdatasync (F_FULLFSYNC on macOS): returns only when the bytes are on stable storage."""

    def reserve(self, offset: int, size: int) -> None:
        """Make sure that later writes to the range cannot fail for lack of space; ENOSPC is raised here.

        The file grows to the end of the range; bytes that were not there before read as zeros.
        """

    def size(self) -> int:
        """The length of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size`, durably: what was cut off cannot come back after a crash."""

    def close(self) -> None:
        """Give the descriptor back; syncs nothing."""


class Disk(Protocol):
    """A directory tree.  Paths are absolute or relative to the disk's root, `/`-separated."""

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> File:
        """Open for reading and writing; missing without `create` raises FileNotFoundError.

        With `write_through` every write is on stable storage when it returns (O_DSYNC).
        """

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, in no order; FileNotFoundError if there is none."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""

    def stat(self, path: str) -> FileStat:
        """Size on disk and age of a file."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is no error."""

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, replacing what had that name, atomically."""

    def unlink(self, path: str) -> None:
        """Remove a name; open files stay readable. A missing one is no error."""

    def rmtree(self, path: str) -> None:
        """Remove a directory with all it holds; a missing one is no error."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and unlinks in a directory durable."""

    def sync_all(self) -> bool:
        """Make everything of the file system durable, names too, however many files that are.

        False where the system cannot, or would not tell that it failed: then nothing is known to be durable.
        """

    def usage(self, path: str) -> DiskSpace:
        """(bytes free for us, bytes free for us or in use) of the file system that holds `path`, as df counts them."""


def write_file_durably(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file as a whole: a crash leaves the old content or the new, never a mixture."""
    prepare_file(disk, path, data)
    publish_prepared(disk, path)


def prepare_file(disk: Disk, path: str, data: bytes) -> None:
    """Write what is to replace a small file, under a name of its own: `path` and `.tmp`."""
    temporary = path + ".tmp"
    disk.unlink(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.pwrite(data, 0)
        file.datasync()
    finally:
        file.close()


def publish_prepared(disk: Disk, path: str) -> None:
    """Put in place what `prepare_file` wrote; takes no space for data."""
    disk.rename(path + ".tmp", path)
    disk.sync_dir(os.path.dirname(path))


def make_directory_durably(path: str) -> None:
    """Make a directory and its parents, so that a power loss takes none of their names.

    The name of one that is there is synced too: whoever made it may have died before that.
    """
    path = os.path.abspath(path)
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        make_directory_durably(parent)
    os.makedirs(path, exist_ok=True)
    OsDisk(parent).sync_dir(".")


def _datasync(descriptor: int) -> None:
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


def _syncfs() -> Callable[[int], int] | None:
    """Linux's `syncfs`, from the version on (5.8) in which it reports what could not be written."""
    if not sys.platform.startswith("linux"):
        return None
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    if found is None or (int(found[1]), int(found[2])) < (5, 8):
        return None
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return function


class OsFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def pread(self, size: int, offset: int) -> bytes:
        """See `File.pread`."""
        disk_work("pread", self._path)
        data = os.pread(self._descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """See `File.pread_nowait`."""
        if native_part.PART is not None:
            return native_part.PART.pread_nowait(self._descriptor, size, offset)
        if not _NOWAIT:
            return None
        buffer = bytearray(size)
        try:
            count = os.preadv(self._descriptor, [buffer], offset, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return None
            raise
        return bytes(buffer) if count == size else None

    def pwrite(self, data: Buffer, offset: int) -> None:
        """See `File.pwrite`."""
        disk_work("pwrite", self._path)
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._descriptor, view[written:], offset + written)

    @property
    def descriptor(self) -> int:
        """See `File.descriptor`."""
        return self._descriptor

    @property
    def sync_descriptor(self) -> int | None:
        """See `File.sync_descriptor`."""
        return None if sys.platform == "darwin" else self._descriptor

    def datasync(self) -> None:
        """See `File.datasync`."""
        disk_work("datasync", self._path)
        _datasync(self._descriptor)

    def reserve(self, offset: int, size: int) -> None:
        """See `File.reserve`."""
        disk_work("reserve", self._path)
        fallocate = getattr(os, "posix_fallocate", None)
        if fallocate is not None:
            fallocate(self._descriptor, offset, size)
            return
        offset, end = max(offset, self.size()), offset + size
        while offset < end:
            step = min(len(_ZEROS), end - offset)
            self.pwrite(memoryview(_ZEROS)[:step], offset)
            offset += step

    def size(self) -> int:
        """See `File.size`."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        disk_work("truncate", self._path)
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        _datasync(self._descriptor)

    def close(self) -> None:
        """See `File.close`."""
        disk_work("close", self._path)
        os.close(self._descriptor)


class OsDisk:
    """The operating system's files below `root`."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> OsFile:
        """See `Disk.open`."""
        disk_work("open", path)
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if write_through:
            flags |= os.O_DSYNC
        return OsFile(os.open(self._path(path), flags, 0o644), path)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        disk_work("listdir", path)
        return os.listdir(self._path(path))

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        disk_work("exists", path)
        return os.path.exists(self._path(path))

    def stat(self, path: str) -> FileStat:
        """See `Disk.stat`."""
        disk_work("stat", path)
        found = os.stat(self._path(path))
        return FileStat(found.st_blocks * 512, found.st_mtime_ns // 1_000_000)

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        disk_work("mkdir", path)
        os.makedirs(self._path(path), exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        disk_work("rename", source)
        os.replace(self._path(source), self._path(target))

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        disk_work("unlink", path)
        try:
            os.unlink(self._path(path))
        except FileNotFoundError:
            pass

    def rmtree(self, path: str) -> None:
        """See `Disk.rmtree`."""
        disk_work("rmtree", path)
        try:
            shutil.rmtree(self._path(path))
        except FileNotFoundError:
            pass

    def sync_dir(self, path: str) -> None:
        """See `Disk.sync_dir`."""
        disk_work("sync_dir", path)
        descriptor = os.open(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self) -> bool:
        """See `Disk.sync_all`."""
        disk_work("sync_all", ".")
        syncfs = _syncfs()
        if syncfs is None:
            return False
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                if code == errno.ENOSYS:
                    return False
                raise OSError(code, os.strerror(code), self.root)
        finally:
            os.close(descriptor)
        return True

    def usage(self, path: str) -> DiskSpace:
        """See `Disk.usage`."""
        disk_work("usage", path)
        found = os.statvfs(self._path(path))
        used = found.f_blocks - found.f_bfree
        return DiskSpace(found.f_bavail * found.f_frsize, (found.f_bavail + used) * found.f_frsize)
