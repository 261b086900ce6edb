"""Interface of the disk for the store. It has few calls, so that a simulated disk can stand in for the real one.

Every durable byte of the log goes through `Disk` and `File`. All calls block, so they belong on worker threads. On an
event loop only `pread_nowait` and `pwrite` of entries are allowed (`dledger_base.loop_guard` checks that). Errors are
`OSError` with `errno` set (ENOSPC, EIO, …).
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

from dledger.store.open_files import SpareFiles
from dledger_base import native_part
from dledger_base.loop_guard import disk_work
from dledger_base.room import FULL

Buffer = bytes | bytearray | memoryview

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
"""Error numbers of a process, or a system, that may open no more files now."""
LACKING = (*FULL, *OUT_OF_FILES)
"""Error numbers of a shortage that may end. The work that meets one waits or is tried again."""

_NOWAIT: int = getattr(os, "RWF_NOWAIT", 0)
_ZEROS = bytes(1 << 20)


class FileStat(NamedTuple):
    """Data of a file: bytes allocated on disk, and time of the last write (ms since 1970)."""

    size_on_disk: int
    mtime_ms: int


class DiskSpace(NamedTuple):
    """Bytes of a file system: those that are free for the log, and all that the log may have."""

    free_bytes: int
    total_bytes: int

    @property
    def used_ratio(self) -> float:
        """Used share, 0 to 1."""
        return 1.0 - self.free_bytes / self.total_bytes if self.total_bytes else 1.0


class File(Protocol):
    """An open file. Offsets and sizes are in bytes."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes at `offset`; fewer only at the end of the file."""

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Read like `pread`, but return None if not all bytes are in the page cache, or if that is unknown."""

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of `data`. A short write is continued, an error raises."""

    @property
    def descriptor(self) -> int | None:
        """File descriptor until the file is closed, for the native part; None if the file has none."""

    @property
    def sync_descriptor(self) -> int | None:
        """Descriptor on which fdatasync does all that `datasync` does; None if that is not enough."""

    def datasync(self) -> None:
        """Return only when the bytes are on stable storage, by fdatasync (F_FULLFSYNC on macOS)."""

    def reserve(self, offset: int, size: int) -> None:
        """Make sure that later writes to the range cannot fail for lack of space. ENOSPC is raised here.

        The file grows to the end of the range. New bytes read as zeros.
        """

    def size(self) -> int:
        """Return the length of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size`, durably: the cut bytes cannot come back after a crash."""

    def close(self) -> None:
        """Close the descriptor, without a sync."""


class Disk(Protocol):
    """A directory tree. Paths are absolute or relative to the disk's root, separated by `/`."""

    spare: SpareFiles
    """Files that may be closed when no more can be opened."""

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> File:
        """Open a file for reading and writing. Without `create` a missing file raises FileNotFoundError.

        With `write_through` every write is on stable storage when it returns (O_DSYNC).
        """

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, in no order. Raises FileNotFoundError if the directory is missing."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name. Raises `OSError` if that cannot be read."""

    def stat(self, path: str) -> FileStat:
        """Return size on disk and time of the last write of a file."""

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents. An existing directory is not an error."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file atomically, replacing the file that had the new name."""

    def unlink(self, path: str) -> None:
        """Remove a name. Open files stay readable, and a missing file is not an error."""

    def rmtree(self, path: str) -> None:
        """Remove a directory and its content. A missing directory is not an error."""

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and unlinks in a directory durable."""

    def sync_all(self) -> bool:
        """Make everything of the file system durable, including names, however many files that are.

        Returns False if the system cannot do that, or would not report a failure. Then nothing is known to be durable.
        """

    def usage(self, path: str) -> DiskSpace:
        """Return the free and the usable bytes of the file system that holds `path`, as df counts them."""


def write_file_durably(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file as a whole. A crash leaves the old content or the new, never a mixture."""
    prepare_file(disk, path, data)
    publish_prepared(disk, path)


def prepare_file(disk: Disk, path: str, data: bytes) -> None:
    """Write the new content of a small file to `path` with `.tmp` appended."""
    temporary = path + ".tmp"
    disk.unlink(temporary)
    file = disk.open(temporary, create=True)
    try:
        file.pwrite(data, 0)
        file.datasync()
    finally:
        file.close()


def publish_prepared(disk: Disk, path: str) -> None:
    """Put the file in place that `prepare_file` wrote. That takes no space for data."""
    disk.rename(path + ".tmp", path)
    disk.sync_dir(os.path.dirname(path))


def make_directory_durably(path: str) -> None:
    """Make a directory and its parents, so that a power loss cannot remove their names.

    The name of an existing directory is synced too: the process that made it may have died before its sync.
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
    """Return Linux's `syncfs`, from the version (5.8) on that reports failed writes."""
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
        """Read up to `size` bytes at `offset`; a short read is continued."""
        disk_work("pread", self._path)
        data = os.pread(self._descriptor, size, offset)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), offset + len(data))
            if not more:
                break
            data += more
        return data

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Read from the page cache only, with RWF_NOWAIT; None if that is not possible."""
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
        """Write all of `data`; a short write is continued."""
        disk_work("pwrite", self._path)
        written = os.pwrite(self._descriptor, data, offset)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            written += os.pwrite(self._descriptor, view[written:], offset + written)

    @property
    def descriptor(self) -> int:
        """File descriptor of the open file."""
        return self._descriptor

    @property
    def sync_descriptor(self) -> int | None:
        """File descriptor, or None on macOS, where fdatasync is not enough."""
        return None if sys.platform == "darwin" else self._descriptor

    def datasync(self) -> None:
        """Sync the file's data, with F_FULLFSYNC on macOS."""
        disk_work("datasync", self._path)
        _datasync(self._descriptor)

    def reserve(self, offset: int, size: int) -> None:
        """Reserve a range with `posix_fallocate`, or by writing zeros where the platform lacks that call."""
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
        """Return the length of the file."""
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        """Cut the file and sync it."""
        disk_work("truncate", self._path)
        os.ftruncate(self._descriptor, size)
        os.fsync(self._descriptor)
        _datasync(self._descriptor)

    def close(self) -> None:
        """Close the descriptor."""
        disk_work("close", self._path)
        os.close(self._descriptor)


class OsDisk:
    """The operating system's files below `root`.

    With `read_only`, files are opened for reading only. That works on a file system that is mounted read-only, as the
    system mounts a dying disk.
    """

    def __init__(self, root: str, *, read_only: bool = False) -> None:
        self.root = os.path.abspath(root)
        self.spare = SpareFiles()
        self._access = os.O_RDONLY if read_only else os.O_RDWR

    def _path(self, path: str) -> str:
        return os.path.join(self.root, path)

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> OsFile:
        """Open a file. If the process may open no more, close a spare file and try again."""
        disk_work("open", path)
        flags = self._access | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
        if write_through:
            flags |= os.O_DSYNC
        return OsFile(self._descriptor(self._path(path), flags), path)

    def _descriptor(self, path: str, flags: int) -> int:
        while True:
            try:
                return os.open(path, flags, 0o644)
            except OSError as error:
                if error.errno not in OUT_OF_FILES or not self.spare.close_one():
                    raise

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""
        disk_work("listdir", path)
        return os.listdir(self._path(path))

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name. Raises `OSError` if that cannot be read."""
        disk_work("exists", path)
        try:
            os.stat(self._path(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        # Other errors are raised: a node that takes an unreadable directory for an empty one starts anew.
        return True

    def stat(self, path: str) -> FileStat:
        """Return size on disk and time of the last write of a file."""
        disk_work("stat", path)
        found = os.stat(self._path(path))
        return FileStat(found.st_blocks * 512, found.st_mtime_ns // 1_000_000)

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""
        disk_work("mkdir", path)
        os.makedirs(self._path(path), exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        """Rename a file with `os.replace`."""
        disk_work("rename", source)
        os.replace(self._path(source), self._path(target))

    def unlink(self, path: str) -> None:
        """Remove a name, if there is one."""
        disk_work("unlink", path)
        try:
            os.unlink(self._path(path))
        except FileNotFoundError:
            pass

    def rmtree(self, path: str) -> None:
        """Remove a directory and its content, if there is one."""
        disk_work("rmtree", path)
        try:
            shutil.rmtree(self._path(path))
        except FileNotFoundError:
            pass

    def sync_dir(self, path: str) -> None:
        """Sync a directory."""
        disk_work("sync_dir", path)
        descriptor = self._descriptor(self._path(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self) -> bool:
        """Sync the whole file system with Linux's `syncfs`; False if the system lacks it."""
        disk_work("sync_all", ".")
        syncfs = _syncfs()
        if syncfs is None:
            return False
        descriptor = self._descriptor(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
        """Return the free and the usable bytes from `statvfs`."""
        disk_work("usage", path)
        found = os.statvfs(self._path(path))
        used = found.f_blocks - found.f_bfree
        return DiskSpace(found.f_bavail * found.f_frsize, (found.f_bavail + used) * found.f_frsize)
