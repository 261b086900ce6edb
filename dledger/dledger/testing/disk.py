"""Disk in memory that forgets, tears, fills up, fails and rots as real disks do.

These survive a crash:

- Of a file, all synced bytes survive. Of each later write nothing, all, or any of its 512-byte sectors survive.
- Of the directories, synced changes survive. Of later creations, renames and unlinks a prefix survives, or any of them
  (see `dledger.testing.names`).
- After a failed sync, reads show either the new bytes or the former ones, but no later sync makes the new ones durable.

A page with a bad sector can neither be read nor written in part, until it is written whole.

A process may have at most `max_files` files open at a time. A disk that was filled up is shared with other programs,
which at once take all space that a truncated or removed file gives back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import random
from asyncio.events import _get_running_loop
from collections.abc import Callable
from functools import partial

from dledger.store.disk import Buffer, DiskSpace, FileStat
from dledger.store.open_files import SpareFiles
from dledger.testing.inodes import PAGE_BYTES, DiskFault, DiskImage, Inode, Keep, TornWriteError, grow, overwrite
from dledger.testing.names import Change, Names, Tree, normal, parent
from dledger_base.loop_guard import refuse_on_loop

BLOCK_BYTES = 4096
UNLIMITED_BYTES = 1 << 60
POWER_GONE = errno.ENODEV
"""Error number of operations that a power loss cuts short. The crash that follows decides what they leave."""


class SimFile:
    """An open file of a `SimDisk`. It is dead after a crash."""

    __slots__ = ("_disk", "_epoch", "_inode", "_open", "_path", "_write_through")

    def __init__(self, disk: SimDisk, inode: Inode, path: str, *, write_through: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._epoch = disk.epoch
        self._open = True
        self._write_through = write_through

    def _begin_operation(self, operation: str, *, waits: bool = True) -> None:
        self._require_open(operation)
        self._disk.begin(operation, self._path, waits=waits)
        self._require_open(operation)  # another task may have run meanwhile

    def _require_open(self, operation: str) -> None:
        if not self._open or self._epoch != self._disk.epoch:
            raise OSError(errno.EBADF, f"{operation} on a closed file", self._path)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes at `offset`; EIO if a page is unreadable."""
        self._begin_operation("pread")
        self._require_readable_pages(self._inode.can_read(offset, size))
        return bytes(self._inode.cached[offset : offset + size])

    def pread_nowait(self, size: int, offset: int) -> bytes | None:
        """Return bytes from the page cache; None at random, as if they were not cached."""
        if self._disk.misses_cache():
            return None
        self._begin_operation("pread", waits=False)
        if not self._inode.can_read(offset, size):
            return None
        data = bytes(self._inode.cached[offset : offset + size])
        return data if len(data) == size else None

    def pwrite(self, data: Buffer, offset: int) -> None:
        """Write all of `data`. An injected torn write stops in the middle of the change."""
        content = bytes(data)
        try:
            self._begin_operation("pwrite")
        except TornWriteError:
            self._write_content(content[: self._middle_of_change(content, offset)], offset)
            raise
        self._write_content(content, offset)
        self._disk.judge_write(self._path)

    def _middle_of_change(self, content: bytes, offset: int) -> int:
        """Return the middle of the bytes that a write changes. The rest of its pages often stays the same."""
        previous = bytes(self._inode.cached[offset : offset + len(content)]).ljust(len(content), b"\0")
        changed = [at for at, (old, new) in enumerate(zip(previous, content, strict=True)) if old != new]
        return (changed[0] + changed[-1] + 1) // 2 if changed else 0

    def _require_readable_pages(self, is_possible: bool) -> None:
        if not is_possible:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._path)

    def _write_content(self, content: bytes, offset: int) -> None:
        end = offset + len(content)
        self._require_readable_pages(self._inode.can_write(offset, len(content)))
        self._inode.unreadable.difference_update(range(-(-offset // PAGE_BYTES), end // PAGE_BYTES))
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
        """None, because the file has no descriptor."""

    @property
    def sync_descriptor(self) -> None:
        """None, because the file has no descriptor."""

    def datasync(self) -> None:
        """Make the writes so far durable. Writes made while it runs need not be covered."""
        covered = len(self._inode.pending)
        try:
            self._begin_operation("datasync")
        except OSError as error:
            if error.errno not in (errno.EBADF, POWER_GONE):
                self._inode.sync_failed(shows_old=self._disk.drops_failed_pages)
            raise
        self._inode.settle(covered)

    def reserve(self, offset: int, size: int) -> None:
        """Allocate the blocks of a range, and grow the file to its end."""
        self._begin_operation("reserve")
        self._disk.allocate(self._inode, self._path, offset, size)
        grow(self._inode.cached, offset + size)

    def size(self) -> int:
        """Return the length of the file."""
        self._begin_operation("size")
        return len(self._inode.cached)

    def truncate(self, size: int) -> None:
        """Cut the file to `size`, durably."""
        self._begin_operation("truncate")
        inode = self._inode
        self._require_readable_pages(inode.can_write(size, 0))
        inode.unreadable = {page for page in inode.unreadable if page * PAGE_BYTES < size}
        before = len(inode.blocks)
        del inode.cached[size:]
        del inode.durable[size:]
        inode.pending = [(offset, data[: size - offset]) for offset, data in inode.pending if offset < size]
        inode.blocks = {block for block in inode.blocks if block * BLOCK_BYTES < size}
        grow(inode.cached, size)
        grow(inode.durable, size)
        self._disk.given_back(before - len(inode.blocks))

    def close(self) -> None:
        """Close the file.

        After a crash or kill it is closed already. A file collected as garbage in a later run is not checked against
        the loop.
        """
        if self._epoch == self._disk.epoch and self._disk.loop in (None, _get_running_loop()):
            refuse_on_loop("close", self._path)
        if self._open and self._epoch == self._disk.epoch:
            self._disk.open_files -= 1
        self._open = False


class SimDisk:
    """A `dledger.store.disk.Disk` in memory.

    `rng` decides what is in the page cache. `capacity_bytes` bounds the allocation of all files. `now_ms` gives the
    times of writes.
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
        """Number of bytes written to all files so far."""
        self.epoch = 0
        self.open_files = 0
        self.max_files: int | None = None
        """Maximum number of files that a process may have open."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """Event loop of the process that has the files open."""
        self.faults: list[DiskFault] = []
        self.entered: Callable[[str, str], None] | None = None
        """Called at the beginning of each operation with its name and path, also for a judge's operations."""
        self.written: Callable[[str], None] | None = None
        """Called with the path after a file was written to."""
        self.at_call: Callable[[str, str], None] | None = None
        """Called before an operation with its name and path. Other tasks may run at this point."""
        self.drops_failed_pages = False
        """True if reads show the former bytes after a failed sync, as on some file systems."""
        self.now_ms = now_ms
        self.spare = SpareFiles()
        self._rng = rng
        self._is_judging = False
        self._cache_miss_share = cache_miss_share
        self._is_crowded = False
        self.others_bytes = 0
        """Number of bytes taken by files that are not this node's."""
        self.names = Names()

    # Faults

    def crash(self, rng: random.Random, keep: Keep = "random") -> None:
        """Lose power: open files are dead, and `keep` says what survives of unsynced changes (see the module)."""
        self.epoch += 1
        self.open_files = 0
        self.names.crash(rng, keep)
        for _, inode in sorted(self.names.seen.files.items()):
            inode.crash(rng, keep)

    def kill(self) -> None:
        """Kill the process while the machine lives: open files are dead, and nothing is lost."""
        self.epoch += 1
        self.open_files = 0

    def fail(
        self, matches: Callable[[str, str], bool], number: int = errno.EIO, *, once: bool = True, torn: bool = False
    ) -> DiskFault:
        """Let operations that match (name, path) fail. The fault is removed after once, or by `faults.remove`."""
        fault = DiskFault(matches, number, once, torn)
        self.faults.append(fault)
        return fault

    def flip_bit(self, path: str, bit: int) -> None:
        """Let a file rot: invert one bit (8 × byte offset + bit)."""
        inode = self._inode(normal(path))
        for content in (inode.cached, inode.durable):
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << (bit % 8)

    def lose(self, path: str) -> None:
        """Lose a file, as by a fault of the file system. Processes that have it open can still read it."""
        for tree in (self.names.seen, self.names.durable):
            tree.files.pop(normal(path), None)

    def spoil(self, path: str, offset: int) -> None:
        """Make a sector bad: the page of a file that holds a byte cannot be read until it is written whole."""
        self._inode(normal(path)).unreadable.add(offset // PAGE_BYTES)

    def is_spoiled(self, path: str, offset: int) -> bool:
        """Return whether the page that holds a byte of a file is unreadable."""
        inode = self.names.seen.files.get(path)
        return inode is not None and offset // PAGE_BYTES in inode.unreadable

    def image(self) -> DiskImage:
        """Return a copy of all files, as they can be read now."""
        files = {path: bytes(inode.cached) for path, inode in self.names.seen.files.items()}
        return DiskImage(files, frozenset(self.names.seen.directories))

    def restore(self, image: DiskImage) -> None:
        """Replace everything by a copy, durably. Open files are dead."""
        self.epoch += 1
        self.open_files = 0
        tree = Tree()
        tree.directories = set(image.directories)
        for path, content in image.files.items():
            inode = tree.files[path] = Inode()
            inode.cached, inode.durable = bytearray(content), bytearray(content)
            inode.blocks = set(range((len(content) + BLOCK_BYTES - 1) // BLOCK_BYTES))
        self.names.replace(tree)

    def durable_bytes(self, path: str, offset: int, size: int) -> bytes:
        """Return what would be left of a range of a file if power were lost now and nothing unsynced survived."""
        inode = self.names.durable.files.get(path)
        return b"" if inode is None else bytes(inode.durable[offset : offset + size])

    def cached_bytes(self, path: str, offset: int, size: int) -> bytes:
        """Return a range of a file in the page cache, which survives the end of a process."""
        inode = self.names.seen.files.get(path)
        return b"" if inode is None else bytes(inode.cached[offset : offset + size])

    def is_durable(self, path: str, offset: int, size: int) -> bool:
        """Return whether a file's name and a range of its bytes would survive any power loss now."""
        inode = self.names.seen.files.get(path)
        if inode is None or self.names.durable.files.get(path) is not inode:
            return False
        end = offset + size
        return len(inode.durable) >= end and inode.cached[offset:end] == inode.durable[offset:end]

    def size(self, path: str) -> int:
        """Return the length of a file; 0 if there is none."""
        inode = self.names.seen.files.get(path)
        return 0 if inode is None else len(inode.cached)

    def durable_size(self, path: str) -> int:
        """Return the length that a file would have after a power loss in which nothing unsynced survived."""
        inode = self.names.durable.files.get(path)
        return 0 if inode is None else len(inode.durable)

    def paths(self) -> list[str]:
        """Return the paths of all files."""
        return sorted(self.names.seen.files)

    def fill_up(self, spare_bytes: int = 0) -> None:
        """Leave only `spare_bytes` of space, and let others take all space that is given back, until `make_room`."""
        self.capacity_bytes = self.allocated_bytes + spare_bytes
        self.others_bytes = 0
        self._is_crowded = True

    def make_room(self) -> None:
        """Give the disk unlimited space."""
        self.capacity_bytes = UNLIMITED_BYTES
        self.others_bytes = 0
        self._is_crowded = False

    def crowd(self, used_ratio: float, capacity_bytes: int) -> None:
        """Let others' files fill a file system of `capacity_bytes` up to `used_ratio`. With 0 there are none."""
        self.make_room()
        if used_ratio:
            self.capacity_bytes = max(capacity_bytes, self.allocated_bytes)
            self.others_bytes = max(0, int(self.capacity_bytes * used_ratio) - self.allocated_bytes)

    @property
    def others_ratio(self) -> float:
        """Used share of a file system that others use as well; 0 if there are no others."""
        if self.capacity_bytes >= UNLIMITED_BYTES:
            return 0.0
        return (self.allocated_bytes + self.others_bytes) / self.capacity_bytes

    @property
    def is_full(self) -> bool:
        """True from `fill_up` to `make_room`."""
        return self._is_crowded

    @property
    def lacks_space(self) -> bool:
        """True if a start may find no space for what a power loss took: less than 1 % is free."""
        return self.is_full or self.others_ratio > 0.99

    def given_back(self, blocks: int) -> None:
        """Note that a file has given back so many blocks."""
        if self._is_crowded:
            self.capacity_bytes -= blocks * BLOCK_BYTES

    def begin(self, operation: str, path: str, *, waits: bool = True) -> None:
        """Begin an operation, which is about to take effect. Raises the error that was injected for it, if any.

        On a node's event loop it raises as `dledger_base.loop_guard` does, unless it never `waits` for the disk.
        """
        if waits:
            refuse_on_loop(operation, path)
        if self.at_call is not None and not self._is_judging:
            self.at_call(operation, path)
        if self.entered is not None:
            self._judge(partial(self.entered, operation, path))
        if self.faults:
            self._check_faults(operation, path)

    def judge_write(self, path: str) -> None:
        """Call the judge of writes after a file was written to."""
        if self.written is not None:
            self._judge(partial(self.written, path))

    def _judge(self, judge: Callable[[], None]) -> None:
        """Call a judge. Its own reads do not count as operations of the node."""
        was_judging, self._is_judging = self._is_judging, True
        try:
            judge()
        finally:
            self._is_judging = was_judging

    def _check_faults(self, operation: str, path: str) -> None:
        for fault in self.faults:
            if fault.matches(operation, path):
                if fault.once:
                    self.faults.remove(fault)
                error = TornWriteError if fault.torn and operation == "pwrite" else OSError
                raise error(fault.number, os.strerror(fault.number), path)

    def misses_cache(self) -> bool:
        """Return whether the next read finds nothing in the page cache."""
        return self._rng is not None and self._rng.random() < self._cache_miss_share

    def allocate(self, inode: Inode, path: str, offset: int, size: int) -> None:
        """Give a file the blocks of a range, or raise ENOSPC."""
        blocks = range(offset // BLOCK_BYTES, (offset + size + BLOCK_BYTES - 1) // BLOCK_BYTES)
        if self.capacity_bytes < UNLIMITED_BYTES:
            lacking_bytes = sum(block not in inode.blocks for block in blocks) * BLOCK_BYTES
            if lacking_bytes and self.allocated_bytes + self.others_bytes + lacking_bytes > self.capacity_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        inode.blocks.update(blocks)

    @property
    def allocated_bytes(self) -> int:
        """Number of bytes that all named files take."""
        return sum([len(inode.blocks) for inode in self.names.seen.files.values()]) * BLOCK_BYTES

    # The disk

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> SimFile:
        """Open a file. If too many files are open, a spare file is closed first."""
        path = normal(path)
        self.begin("open", path)
        self._require_descriptor(path)
        inode = self.names.seen.files.get(path)
        if inode is None:
            if not create or parent(path) not in self.names.seen.directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            inode = Inode()
            inode.mtime_ms = self.now_ms()
            self._change(Change("link", path, inode=inode))
        self.open_files += 1
        return SimFile(self, inode, path, write_through=write_through)

    def _require_descriptor(self, path: str) -> None:
        while self.max_files is not None and self.open_files >= self.max_files:
            if not self.spare.close_one():
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""
        path = normal(path)
        self.begin("listdir", path)
        if path not in self.names.seen.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        names = (*self.names.seen.files, *self.names.seen.directories)
        return sorted([posixpath.basename(name) for name in names if parent(name) == path and name != "."])

    def exists(self, path: str) -> bool:
        """Return whether a file or directory has this name."""
        path = normal(path)
        refuse_on_loop("exists", path)
        return path in self.names.seen.files or path in self.names.seen.directories

    def stat(self, path: str) -> FileStat:
        """Return size on disk and time of the last write of a file."""
        refuse_on_loop("stat", path)
        inode = self._inode(normal(path))
        return FileStat(len(inode.blocks) * BLOCK_BYTES, inode.mtime_ms)

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""
        path = normal(path)
        refuse_on_loop("mkdir", path)
        if self.at_call is not None:
            self.at_call("mkdir", path)
        if path not in self.names.seen.directories:
            self.mkdir(parent(path))
            self._change(Change("mkdir", path))

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory, replacing a file or an empty directory."""
        source, target = normal(source), normal(target)
        self.begin("rename", source)
        if not self.exists(source):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        if source != target and target in self.names.seen.directories and self.listdir(target):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        replaced = self.names.seen.files.get(target) if source != target else None
        self._change(Change("rename", source, target))
        self._note_unlinked(replaced)

    def unlink(self, path: str) -> None:
        """Remove a name, if there is one."""
        path = normal(path)
        self.begin("unlink", path)
        if path in self.names.seen.files:
            inode = self.names.seen.files[path]
            self._change(Change("unlink", path))
            self._note_unlinked(inode)

    def rmtree(self, path: str) -> None:
        """Remove a directory with all its files."""
        path = normal(path)
        refuse_on_loop("rmtree", path)
        prefix = path + "/"
        for name in sorted(self.names.seen.files):
            if name.startswith(prefix):
                self.unlink(name)
        for name in sorted(self.names.seen.directories, reverse=True):
            if name == path or name.startswith(prefix):
                self._change(Change("unlink", name))

    def sync_dir(self, path: str) -> None:
        """Make the entries of a directory durable."""
        path = normal(path)
        self.begin("sync_dir", path)
        self._require_descriptor(path)
        self.names.sync(path)

    def sync_all(self) -> bool:
        """Return False: files are synced one by one here, so that a crash can come between."""
        return False

    def usage(self, path: str) -> DiskSpace:
        """Return the free and the total bytes of the simulated file system."""
        refuse_on_loop("usage", path)
        taken_bytes = self.allocated_bytes + self.others_bytes
        return DiskSpace(max(0, self.capacity_bytes - taken_bytes), self.capacity_bytes)

    def _note_unlinked(self, inode: Inode | None) -> None:
        if inode is not None:
            self.given_back(len(inode.blocks))

    def _change(self, change: Change) -> None:
        self.names.change(change)

    def _inode(self, path: str) -> Inode:
        inode = self.names.seen.files.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode
