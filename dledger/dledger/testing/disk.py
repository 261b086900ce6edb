"""A disk in memory that forgets, tears, fills up, fails and rots as real ones do.

What survives a crash:

- of a file, what was synced, and of each write since then nothing, all, or any of its 512-byte sectors;
- of the directories, what was synced, and of the creations, renames and unlinks since then a prefix: file systems
  journal them in order;
- after a failed sync, reads go on showing the bytes, but no later sync makes them durable.

A disk that was filled up is shared with somebody who takes at once whatever a truncated or removed file gives back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import random
from asyncio.events import _get_running_loop
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dledger.loop_guard import refuse_on_loop
from dledger.store.disk import Buffer, DiskSpace, FileStat
from dledger.testing.inodes import Change, Inode, Keep, Tree, grow, normal, overwrite, parent

BLOCK_BYTES = 4096
UNLIMITED_BYTES = 1 << 60
POWER_GONE = errno.ENODEV
"""The error of operations that a loss of power cuts short: what they leave, the crash decides that follows."""


@dataclass(slots=True)
class DiskFault:
    """Operations that `matches` (operation name, path) fail with error number `number`, once or until removed.

    With `torn` a write that fails has written its first half.
    """

    matches: Callable[[str, str], bool]
    number: int = errno.EIO
    once: bool = True
    torn: bool = False


class _TornWriteError(OSError):
    """A write failed in its middle."""


@dataclass(frozen=True, slots=True)
class DiskImage:
    """A copy of all files."""

    files: dict[str, bytes]
    directories: frozenset[str]


class SimFile:
    """An open file of a `SimDisk`; dead after a crash."""

    __slots__ = ("_disk", "_epoch", "_inode", "_open", "_path", "_write_through")

    def __init__(self, disk: SimDisk, inode: Inode, path: str, *, write_through: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._epoch = disk.epoch
        self._open = True
        self._write_through = write_through

    def _begin(self, operation: str, *, waits: bool = True) -> None:
        self._require_open(operation)
        self._disk.begin(operation, self._path, waits=waits)
        self._require_open(operation)  # something else may have run meanwhile

    def _require_open(self, operation: str) -> None:
        if not self._open or self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, f"{operation} on a closed file", self._path)

    def pread(self, size: int, offset: int) -> bytes:
        """See `File.pread`."""
        self._begin("pread")
        return bytes(self._inode.cached[offset : offset + size])

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """See `File.pread_nowait`; at random there is nothing in the page cache."""
        if self._disk.misses_cache():
            return None
        self._begin("pread", waits=False)
        data = bytes(self._inode.cached[offset : offset + size])
        return data if len(data) == size else None

    def pwrite(self, data: Buffer, offset: int) -> None:
        """See `File.pwrite`."""
        content = bytes(data)
        try:
            self._begin("pwrite")
        except _TornWriteError:
            self._put(content[: len(content) // 2], offset)
            raise
        self._put(content, offset)
        self._disk.judge_write(self._path)

    def _put(self, content: bytes, offset: int) -> None:
        self._disk.allocate(self._inode, self._path, offset, len(content))
        self._disk.bytes_written += len(content)
        overwrite(self._inode.cached, offset, content)
        self._inode.mtime_ms = self._disk.now_ms()
        if self._write_through:
            overwrite(self._inode.durable, offset, content)
        else:
            self._inode.pending.append((offset, content))

    @property
    def descriptor(self) -> None:
        """See `File.descriptor`; there is none."""

    @property
    def sync_descriptor(self) -> None:
        """See `File.sync_descriptor`; there is none."""

    def datasync(self) -> None:
        """See `File.datasync`; what is written while it goes on need not be covered."""
        covered = len(self._inode.pending)
        try:
            self._begin("datasync")
        except OSError as error:
            if error.errno not in (errno.EBADF, POWER_GONE):
                self._inode.pending.clear()
            raise
        self._inode.settle(covered)

    def reserve(self, offset: int, size: int) -> None:
        """See `File.reserve`."""
        self._begin("reserve")
        self._disk.allocate(self._inode, self._path, offset, size)
        grow(self._inode.cached, offset + size)

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
        grow(inode.cached, size)
        grow(inode.durable, size)
        self._disk.given_back(before - len(inode.blocks))

    def close(self) -> None:
        """See `File.close`; what a dead process had open is closed already, and garbage of another run is nobody's."""
        if self._epoch == self._disk.epoch and self._disk.loop in (None, _get_running_loop()):
            refuse_on_loop("close", self._path)
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
        self.loop: asyncio.AbstractEventLoop | None = None
        """Of the process that has the files open."""
        self.faults: list[DiskFault] = []
        self.entered: Callable[[str, str], None] | None = None
        """Called at the beginning of an operation with its name and path, whoever's it is."""
        self.written: Callable[[str], None] | None = None
        """Called when a file was written to, with its path."""
        self.at_call: Callable[[], None] | None = None
        """Called before an operation: a point at which something else may run."""
        self.now_ms = now_ms
        self._rng = rng
        self._judged = False
        self._cache_miss_share = cache_miss_share
        self._crowded = False
        self._tree = Tree()
        self._durable_tree = Tree()
        self._journal: list[Change] = []

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

    def fail(
        self, matches: Callable[[str, str], bool], number: int = errno.EIO, *, once: bool = True, torn: bool = False
    ) -> DiskFault:
        """Let the operations that match (name, path) fail; the fault is removed by `faults.remove`, or after once."""
        fault = DiskFault(matches, number, once, torn)
        self.faults.append(fault)
        return fault

    def flip_bit(self, path: str, bit: int) -> None:
        """Bit rot: invert one bit (8 × byte offset + bit) of a file."""
        inode = self._inode(normal(path))
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
        self._tree = Tree()
        self._tree.directories = set(image.directories)
        for path, content in image.files.items():
            inode = self._tree.files[path] = Inode()
            inode.cached, inode.durable = bytearray(content), bytearray(content)
            inode.blocks = set(range((len(content) + BLOCK_BYTES - 1) // BLOCK_BYTES))
        self._durable_tree = self._tree.copy()

    def durable_bytes(self, path: str, offset: int, size: int) -> bytes:
        """What would be left of a range of a file if power were lost now and nothing unsynced survived."""
        inode = self._durable_tree.files.get(path)
        return b"" if inode is None else bytes(inode.durable[offset : offset + size])

    def cached_bytes(self, path: str, offset: int, size: int) -> bytes:
        """What the page cache has of a range of a file, which survives the end of a process."""
        inode = self._tree.files.get(path)
        return b"" if inode is None else bytes(inode.cached[offset : offset + size])

    def is_durable(self, path: str, offset: int, size: int) -> bool:
        """Whether a file's name and a range of its bytes would survive a power loss now, whatever it leaves."""
        inode = self._tree.files.get(path)
        if inode is None or self._durable_tree.files.get(path) is not inode:
            return False
        end = offset + size
        return len(inode.durable) >= end and inode.cached[offset:end] == inode.durable[offset:end]

    def size(self, path: str) -> int:
        """The length of a file, 0 if there is none."""
        inode = self._tree.files.get(path)
        return 0 if inode is None else len(inode.cached)

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

    def begin(self, operation: str, path: str, *, waits: bool = True) -> None:
        """An operation is about to take effect; raises what was injected for it, if anything.

        On a node's event loop it raises as `dledger.loop_guard` says, unless it never `waits` for the disk.
        """
        if waits:
            refuse_on_loop(operation, path)
        if self.at_call is not None and not self._judged:
            self.at_call()
        if self.entered is not None:
            self._judge(partial(self.entered, operation, path))
        if self.faults:
            self._check_faults(operation, path)

    def judge_write(self, path: str) -> None:
        """A file was written to."""
        if self.written is not None:
            self._judge(partial(self.written, path))

    def _judge(self, look: Callable[[], None]) -> None:
        """What a judge reads is no operation of the node's."""
        before, self._judged = self._judged, True
        try:
            look()
        finally:
            self._judged = before

    def _check_faults(self, operation: str, path: str) -> None:
        for fault in self.faults:
            if fault.matches(operation, path):
                if fault.once:
                    self.faults.remove(fault)
                error = _TornWriteError if fault.torn and operation == "pwrite" else OSError
                raise error(fault.number, os.strerror(fault.number), path)

    def misses_cache(self) -> bool:
        """Whether the next read finds nothing in the page cache."""
        return self._rng is not None and self._rng.random() < self._cache_miss_share

    def allocate(self, inode: Inode, path: str, offset: int, size: int) -> None:
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
        path = normal(path)
        self.begin("open", path)
        inode = self._tree.files.get(path)
        if inode is None:
            if not create or parent(path) not in self._tree.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = Inode()
            inode.mtime_ms = self.now_ms()
            self._change(Change("link", path, inode=inode))
        return SimFile(self, inode, path, write_through=write_through)

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        path = normal(path)
        self.begin("listdir", path)
        if path not in self._tree.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        names = (*self._tree.files, *self._tree.directories)
        return sorted([posixpath.basename(name) for name in names if parent(name) == path and name != "."])

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        path = normal(path)
        refuse_on_loop("exists", path)
        return path in self._tree.files or path in self._tree.directories

    def stat(self, path: str) -> FileStat:
        """See `Disk.stat`."""
        refuse_on_loop("stat", path)
        inode = self._inode(normal(path))
        return FileStat(len(inode.blocks) * BLOCK_BYTES, inode.mtime_ms)

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        path = normal(path)
        refuse_on_loop("mkdir", path)
        if self.at_call is not None:
            self.at_call()
        if path not in self._tree.directories:
            self.mkdir(parent(path))
            self._change(Change("mkdir", path))

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        source, target = normal(source), normal(target)
        self.begin("rename", source)
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if source != target and target in self._tree.directories and self.listdir(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        replaced = self._tree.files.get(target) if source != target else None
        self._change(Change("rename", source, target))
        self._gone(replaced)

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        path = normal(path)
        self.begin("unlink", path)
        if path in self._tree.files:
            inode = self._tree.files[path]
            self._change(Change("unlink", path))
            self._gone(inode)

    def rmtree(self, path: str) -> None:
        """See `Disk.rmtree`."""
        path = normal(path)
        refuse_on_loop("rmtree", path)
        inside = path + "/"
        for name in sorted(self._tree.files):
            if name.startswith(inside):
                self.unlink(name)
        for name in sorted(self._tree.directories, reverse=True):
            if name == path or name.startswith(inside):
                self._change(Change("unlink", name))

    def sync_dir(self, path: str) -> None:
        """See `Disk.sync_dir`."""
        path = normal(path)
        self.begin("sync_dir", path)
        last = max((at for at, change in enumerate(self._journal) if change.touches(path)), default=-1)
        for change in self._journal[: last + 1]:
            self._durable_tree.apply(change)
        del self._journal[: last + 1]

    def sync_all(self) -> bool:
        """See `Disk.sync_all`: never here, where files are synced one by one so that a crash can come between."""
        return False

    def usage(self, path: str) -> DiskSpace:
        """See `Disk.usage`."""
        refuse_on_loop("usage", path)
        return DiskSpace(max(0, self.capacity_bytes - self.allocated_bytes), self.capacity_bytes)

    def _gone(self, inode: Inode | None) -> None:
        if inode is not None:
            self.given_back(len(inode.blocks))

    def _change(self, change: Change) -> None:
        self._tree.apply(change)
        self._journal.append(change)

    def _inode(self, path: str) -> Inode:
        inode = self._tree.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode
