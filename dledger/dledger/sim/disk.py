"""A disk in memory that forgets, tears, fills up, fails and rots as real ones do.

What survives a crash:

- of a file, what was synced, and of each write since then nothing, all, or any of its 512-byte sectors;
- of the directories, what was synced, and of the creations, renames and unlinks since then a prefix: file systems
  journal them in order;
- after a failed sync, reads go on showing the bytes, but no later sync makes them durable.

A disk that was filled up is shared with somebody who takes at once whatever a truncated or removed file gives back.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dledger.store.disk import Buffer, FileStat

SECTOR_BYTES = 512
BLOCK_BYTES = 4096
UNLIMITED_BYTES = 1 << 60
POWER_GONE = errno.ENODEV
"""The error of operations that a loss of power cuts short: what they leave, the crash decides that follows."""

Keep = Literal["none", "random", "all"]
"""What a crash leaves of that which was not synced."""


@dataclass(slots=True)
class DiskFault:
    """Operations that `matches` (operation name, path) fail with error number `number`, once or until removed."""

    matches: Callable[[str, str], bool]
    number: int = errno.EIO
    once: bool = True


class _Inode:
    """The bytes of one file: as the page cache shows them, and as they are on the platter."""

    __slots__ = ("blocks", "cached", "durable", "mtime_ms", "pending")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.blocks: set[int] = set()
        self.mtime_ms = 0

    def settle(self) -> None:
        """All pending writes reach the platter."""
        for offset, data in self.pending:
            _overwrite(self.durable, offset, data)
        self.pending.clear()
        _grow(self.durable, len(self.cached))

    def crash(self, rng: random.Random, keep: Keep) -> None:
        """The page cache is lost; `keep` says what of the pending writes had reached the platter."""
        for offset, data in self.pending:
            if keep == "all":
                _overwrite(self.durable, offset, data)
            elif keep == "random":
                self._tear(rng, offset, data)
        if keep == "all" or (keep == "random" and rng.random() < 0.5):
            _grow(self.durable, len(self.cached))
        self.pending.clear()
        self.cached = bytearray(self.durable)

    def _tear(self, rng: random.Random, offset: int, data: bytes) -> None:
        share = rng.choice((0.0, rng.random(), 1.0))
        begin = offset
        while begin < offset + len(data):
            end = min(offset + len(data), (begin // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if rng.random() < share:
                _overwrite(self.durable, begin, data[begin - offset : end - offset])
            begin = end


def _grow(content: bytearray, size: int) -> None:
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def _overwrite(content: bytearray, offset: int, data: bytes) -> None:
    _grow(content, offset)
    content[offset : offset + len(data)] = data


@dataclass(slots=True, frozen=True)
class _Change:
    """One change of the directory tree; `inode` for a new file, `target` for a rename."""

    kind: Literal["link", "mkdir", "rename", "unlink"]
    path: str
    target: str = ""
    inode: _Inode | None = None

    def touches(self, directory: str) -> bool:
        return directory == _parent(self.path) or (self.target != "" and directory == _parent(self.target))


class _Tree:
    """Names: files by path, and directories."""

    def __init__(self) -> None:
        self.files: dict[str, _Inode] = {}
        self.directories: set[str] = {"."}

    def copy(self) -> _Tree:
        twin = _Tree()
        twin.files = dict(self.files)
        twin.directories = set(self.directories)
        return twin

    def apply(self, change: _Change) -> None:
        if change.kind == "link":
            assert change.inode is not None
            self.files[change.path] = change.inode
        elif change.kind == "mkdir":
            self.directories.add(change.path)
        elif change.kind == "unlink":
            self.files.pop(change.path, None)
            self.directories.discard(change.path)
        else:
            self._rename(change.path, change.target)

    def _rename(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return

        def moved(path: str) -> str:
            return target + path[len(source) :] if path == source or path.startswith(source + "/") else path

        moving = {path: inode for path, inode in self.files.items() if moved(path) != path}
        self.files = {path: inode for path, inode in self.files.items() if path not in moving}
        self.files.update({moved(path): inode for path, inode in moving.items()})
        self.directories = {moved(path) for path in self.directories}


@dataclass(frozen=True, slots=True)
class DiskImage:
    """A copy of all files."""

    files: dict[str, bytes]
    directories: frozenset[str]


class SimFile:
    """An open file of a `SimDisk`; dead after a crash."""

    __slots__ = ("_disk", "_epoch", "_inode", "_open", "_path", "_write_through")

    def __init__(self, disk: SimDisk, inode: _Inode, path: str, *, write_through: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._epoch = disk.epoch
        self._open = True
        self._write_through = write_through

    def _begin(self, operation: str) -> None:
        if not self._open or self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, f"{operation} on a closed file", self._path)
        if self._disk.faults:
            self._disk.check_fault(operation, self._path)

    def pread(self, size: int, offset: int) -> bytes:
        """See `File.pread`."""
        self._begin("pread")
        return bytes(self._inode.cached[offset : offset + size])

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """See `File.pread_nowait`; at random there is nothing in the page cache."""
        if self._disk.misses_cache():
            return None
        data = self.pread(size, offset)
        return data if len(data) == size else None

    def pwrite(self, data: Buffer, offset: int) -> None:
        """See `File.pwrite`."""
        self._begin("pwrite")
        content = bytes(data)
        self._disk.allocate(self._inode, self._path, offset, len(content))
        self._disk.bytes_written += len(content)
        _overwrite(self._inode.cached, offset, content)
        self._inode.mtime_ms = self._disk.now_ms()
        if self._write_through:
            _overwrite(self._inode.durable, offset, content)
        else:
            self._inode.pending.append((offset, content))

    def datasync(self) -> None:
        """See `File.datasync`."""
        try:
            self._begin("datasync")
        except OSError as error:
            if error.errno not in (errno.EBADF, POWER_GONE):
                self._inode.pending.clear()
            raise
        self._inode.settle()

    def reserve(self, offset: int, size: int) -> None:
        """See `File.reserve`."""
        self._begin("reserve")
        self._disk.allocate(self._inode, self._path, offset, size)
        _grow(self._inode.cached, offset + size)

    def size(self) -> int:
        """See `File.size`."""
        self._begin("size")
        return len(self._inode.cached)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        self._begin("truncate")
        inode = self._inode
        before = len(inode.blocks)
        del inode.cached[size:]
        del inode.durable[size:]
        inode.pending = [(offset, data[: size - offset]) for offset, data in inode.pending if offset < size]
        inode.blocks = {block for block in inode.blocks if block * BLOCK_BYTES < size}
        _grow(inode.cached, size)
        _grow(inode.durable, size)
        self._disk.given_back(before - len(inode.blocks))

    def close(self) -> None:
        """See `File.close`."""
        self._open = False


class SimDisk:
    """A `dledger.store.disk.Disk` in memory.

    `rng` decides what is in the page cache; `capacity_bytes` bounds what all files allocate; `now_ms` dates the writes.
    """

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        capacity_bytes: int = UNLIMITED_BYTES,
        cache_miss_share: float = 0.2,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.bytes_written = 0
        """Of all files, so far."""
        self.epoch = 0
        self.faults: list[DiskFault] = []
        self.now_ms = now_ms
        self._rng = rng
        self._cache_miss_share = cache_miss_share
        self._crowded = False
        self._tree = _Tree()
        self._durable_tree = _Tree()
        self._journal: list[_Change] = []

    # Faults

    def crash(self, rng: random.Random, keep: Keep = "random") -> None:
        """Power is lost: open files are dead, what was not synced is lost as `keep` says (see the module)."""
        self.epoch += 1
        kept = {"none": 0, "all": len(self._journal)}.get(keep, rng.randint(0, len(self._journal)))
        for change in self._journal[:kept]:
            self._durable_tree.apply(change)
        self._journal.clear()
        self._tree = self._durable_tree.copy()
        for _, inode in sorted(self._tree.files.items()):
            inode.crash(rng, keep)

    def kill(self) -> None:
        """The process dies, the machine lives: open files are dead, nothing is lost."""
        self.epoch += 1

    def fail(self, matches: Callable[[str, str], bool], number: int = errno.EIO, *, once: bool = True) -> DiskFault:
        """Let the operations that match (name, path) fail; the fault is removed by `faults.remove`, or after once."""
        fault = DiskFault(matches, number, once)
        self.faults.append(fault)
        return fault

    def flip_bit(self, path: str, bit: int) -> None:
        """Bit rot: invert one bit (8 × byte offset + bit) of a file."""
        inode = self._inode(_normal(path))
        for content in (inode.cached, inode.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << (bit % 8)

    def image(self) -> DiskImage:
        """A copy of everything, as it can be read now."""
        files = {path: bytes(inode.cached) for path, inode in self._tree.files.items()}
        return DiskImage(files, frozenset(self._tree.directories))

    def restore(self, image: DiskImage) -> None:
        """Put a copy in the place of everything, durably; open files are dead."""
        self.epoch += 1
        self._journal.clear()
        self._tree = _Tree()
        self._tree.directories = set(image.directories)
        for path, content in image.files.items():
            inode = self._tree.files[path] = _Inode()
            inode.cached, inode.durable = bytearray(content), bytearray(content)
            inode.blocks = set(range((len(content) + BLOCK_BYTES - 1) // BLOCK_BYTES))
        self._durable_tree = self._tree.copy()

    def durable_bytes(self, path: str, offset: int, size: int) -> bytes:
        """What would be left of a range of a file if power were lost now and nothing unsynced survived."""
        inode = self._durable_tree.files.get(path)
        return b"" if inode is None else bytes(inode.durable[offset : offset + size])

    def durable_size(self, path: str) -> int:
        """The length that a file would have after such a power loss."""
        inode = self._durable_tree.files.get(path)
        return 0 if inode is None else len(inode.durable)

    def paths(self) -> list[str]:
        """All files."""
        return sorted(self._tree.files)

    def fill_up(self, spare_bytes: int = 0) -> None:
        """Leave no space but a little, and let others take what is given back from now on, until `make_room`."""
        self.capacity_bytes = self.allocated_bytes + spare_bytes
        self._crowded = True

    def make_room(self) -> None:
        """There is space for everybody."""
        self.capacity_bytes = UNLIMITED_BYTES
        self._crowded = False

    @property
    def is_full(self) -> bool:
        """Whether `fill_up` was called, and `make_room` was not yet."""
        return self._crowded

    def given_back(self, blocks: int) -> None:
        """A file has so many blocks less."""
        if self._crowded:
            self.capacity_bytes -= blocks * BLOCK_BYTES

    def check_fault(self, operation: str, path: str) -> None:
        """Raise what was injected for an operation, if anything."""
        for fault in self.faults:
            if fault.matches(operation, path):
                if fault.once:
                    self.faults.remove(fault)
                raise OSError(fault.number, os.strerror(fault.number), path)

    def misses_cache(self) -> bool:
        """Whether the next read finds nothing in the page cache."""
        return self._rng is not None and self._rng.random() < self._cache_miss_share

    def allocate(self, inode: _Inode, path: str, offset: int, size: int) -> None:
        """Give a file the blocks of a range, or raise ENOSPC."""
        wanted = range(offset // BLOCK_BYTES, (offset + size + BLOCK_BYTES - 1) // BLOCK_BYTES)
        if self.capacity_bytes < UNLIMITED_BYTES:
            lacking = sum(block not in inode.blocks for block in wanted) * BLOCK_BYTES
            if lacking and self.allocated_bytes + lacking > self.capacity_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode.blocks.update(wanted)

    @property
    def allocated_bytes(self) -> int:
        """What all named files take."""
        return sum([len(inode.blocks) for inode in self._tree.files.values()]) * BLOCK_BYTES

    # The disk

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> SimFile:
        """See `Disk.open`."""
        path = _normal(path)
        self.check_fault("open", path)
        inode = self._tree.files.get(path)
        if inode is None:
            if not create or _parent(path) not in self._tree.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = _Inode()
            inode.mtime_ms = self.now_ms()
            self._change(_Change("link", path, inode=inode))
        return SimFile(self, inode, path, write_through=write_through)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        path = _normal(path)
        if path not in self._tree.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        names = (*self._tree.files, *self._tree.directories)
        return sorted([posixpath.basename(name) for name in names if _parent(name) == path and name != "."])

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        path = _normal(path)
        return path in self._tree.files or path in self._tree.directories

    def stat(self, path: str) -> FileStat:
        """See `Disk.stat`."""
        inode = self._inode(_normal(path))
        return FileStat(len(inode.blocks) * BLOCK_BYTES, inode.mtime_ms)

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        path = _normal(path)
        if path not in self._tree.directories:
            self.mkdir(_parent(path))
            self._change(_Change("mkdir", path))

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        source, target = _normal(source), _normal(target)
        self.check_fault("rename", source)
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if source != target and target in self._tree.directories and self.listdir(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        replaced = self._tree.files.get(target) if source != target else None
        self._change(_Change("rename", source, target))
        self._gone(replaced)

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        path = _normal(path)
        self.check_fault("unlink", path)
        if path in self._tree.files:
            inode = self._tree.files[path]
            self._change(_Change("unlink", path))
            self._gone(inode)

    def rmtree(self, path: str) -> None:
        """See `Disk.rmtree`."""
        path = _normal(path)
        inside = path + "/"
        for name in sorted(self._tree.files):
            if name.startswith(inside):
                self.unlink(name)
        for name in sorted(self._tree.directories, reverse=True):
            if name == path or name.startswith(inside):
                self._change(_Change("unlink", name))

    def sync_dir(self, path: str) -> None:
        """See `Disk.sync_dir`."""
        path = _normal(path)
        self.check_fault("sync_dir", path)
        last = max((at for at, change in enumerate(self._journal) if change.touches(path)), default=-1)
        for change in self._journal[: last + 1]:
            self._durable_tree.apply(change)
        del self._journal[: last + 1]

    def usage(self, path: str) -> tuple[int, int]:
        """See `Disk.usage`."""
        _ = path
        return max(0, self.capacity_bytes - self.allocated_bytes), self.capacity_bytes

    def _gone(self, inode: _Inode | None) -> None:
        if inode is not None:
            self.given_back(len(inode.blocks))

    def _change(self, change: _Change) -> None:
        self._tree.apply(change)
        self._journal.append(change)

    def _inode(self, path: str) -> _Inode:
        inode = self._tree.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode


@lru_cache(maxsize=1 << 14)
def _normal(path: str) -> str:
    return posixpath.normpath(path.lstrip("/") or ".")


@lru_cache(maxsize=1 << 14)
def _parent(path: str) -> str:
    return posixpath.dirname(path) or "."
