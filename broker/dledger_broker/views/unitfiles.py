"""The files of consume queues: their names, and their writer. Every call that touches a file blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from hashlib import sha256
from threading import Lock
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from dledger.errors import BusyError
from dledger.store.disk import OUT_OF_FILES, Disk, File
from dledger.store.open_files import share_of_files
from dledger.store.unreadable import is_lost
from dledger_broker.views.stamps import are_whole, stamped, state
from dledger_broker.views.units import FILLER, UNIT_BYTES, UNITS_PER_FILE

_P = ParamSpec("_P")
_R = TypeVar("_R")

DIRECTORY = "consumequeue"
DELETED_PREFIX = ".deleted-"
"""Begin of the name of a deleted topic's directory until a checkpoint no longer lists the topic."""
MAX_NAME_BYTES = 255
"""Maximum length of the name of a file or directory on the usual file systems. Names of topics are ASCII."""
UNITS_PER_READ = 50_000
"""Number of units that are verified at a time: 1 MB."""
_KEPT_NAMES = 1024
"""Number of cached names, which need not be built again for the next read."""


class UnitBatch(NamedTuple):
    """Units of one queue to write: its directory, the offset of the first, the bytes, and the seed of their stamps."""

    directory: str
    offset: int
    data: bytes
    seed: int = 0


@lru_cache(maxsize=_KEPT_NAMES)
def queue_directory(topic: str, queue_id: int) -> str:
    """Return the directory of a queue's files."""
    return f"{DIRECTORY}/{topic}/{queue_id}"


def topic_directory(topic: str) -> str:
    """Return the directory of a topic's queues."""
    return f"{DIRECTORY}/{topic}"


def deleted_directory(topic: str, created_position: int) -> str:
    """Return the directory of a deleted topic. If its name is too long for a directory, the digest of the name takes
    its place.
    """
    name = f"{DELETED_PREFIX}{created_position}-{topic}"
    if len(name) > MAX_NAME_BYTES:
        name = f"{DELETED_PREFIX}{created_position}-{sha256(topic.encode()).hexdigest()}"
    return f"{DIRECTORY}/{name}"


class BadUnits(NamedTuple):
    """Ranges of offsets whose units are to be written anew, ascending. All their records lie behind the position
    `behind`.
    """

    ranges: list[tuple[int, int]]
    behind: int


class FileLayout(NamedTuple):
    """Distribution of units over files."""

    units_per_file: int = UNITS_PER_FILE

    @property
    def file_bytes(self) -> int:
        """The size of every file."""
        return self.units_per_file * UNIT_BYTES

    def path(self, directory: str, offset: int) -> str:
        """Return the path of a queue's file that holds the unit at an offset."""
        return _path(directory, offset // self.units_per_file * self.file_bytes)

    def first_offset(self, name: str) -> int:
        """Return the offset of the first unit of a file."""
        return int(name) // UNIT_BYTES

    def place(self, offset: int) -> int:
        """Return the byte in its file at which the unit at an offset starts."""
        return offset % self.units_per_file * UNIT_BYTES

    def room(self, offset: int) -> int:
        """Return the number of units from an offset to the end of its file."""
        return self.units_per_file - offset % self.units_per_file


@lru_cache(maxsize=_KEPT_NAMES)
def _path(directory: str, first_byte: int) -> str:
    return f"{directory}/{first_byte:020d}"


class OpenFiles:
    """At most `limit` open files. The least recently used is closed first.

    They belong to one thread at a time, which holds `working` while it uses them. `close_one` may be called on any
    other thread.
    """

    def __init__(self, disk: Disk, limit: int | None = None) -> None:
        self.working = Lock()
        self._disk = disk
        self._limit = share_of_files() if limit is None else limit
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str, *, create: bool = False) -> File:
        """Return the open file. A missing file without `create` raises FileNotFoundError.

        Raises `BusyError` if the process may open no more files now, and no file here could be closed for it.
        """
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        while (file := opened(self._disk, path, create=create)) is None:
            if not self._files:
                raise BusyError(f"{path} cannot be opened now: the process may open no more files")
            self._files.popitem(last=False)[1].close()
        self._files[path] = file
        if len(self._files) > self._limit:
            self._files.popitem(last=False)[1].close()
        return file

    def close_one(self) -> bool:
        """Close a file unless the files are being used. Return whether a file was closed
        (`dledger.store.open_files.SpareFiles`).
        """
        if not self.working.acquire(blocking=False):
            return False
        try:
            if not self._files:
                return False
            self._files.popitem(last=False)[1].close()
        finally:
            self.working.release()
        return True

    def __len__(self) -> int:
        return len(self._files)

    def forget(self, prefix: str = "") -> None:
        """Close the files whose path starts with `prefix`."""
        for path in [path for path in self._files if path.startswith(prefix)]:
            self._files.pop(path).close()


def opened(disk: Disk, path: str, *, create: bool = False) -> File | None:
    """Open a file. Return None if the process may open no more files now, and no file can be spared."""
    try:
        return disk.open(path, create=create)
    except OSError as error:
        if error.errno not in OUT_OF_FILES:
            raise
        return None


def _job(work: Callable[Concatenate[QueueFileWriter, _P], _R]) -> Callable[Concatenate[QueueFileWriter, _P], _R]:
    """Decorate a job: no other thread closes its files meanwhile. If it could open no file it raises `BusyError`, and
    is tried again.
    """

    @wraps(work)
    def run(writer: QueueFileWriter, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with writer.files.working:
            try:
                return work(writer, *args, **kwargs)
            except OSError as error:
                if error.errno in OUT_OF_FILES:
                    raise BusyError(f"files of consume queues cannot be opened now: {error}") from error
                raise

    return run


class QueueFileWriter:
    """Writer of units. It remembers which files wait for a sync. Only the view writer's jobs use it, one at a time.

    A job that opens files raises `BusyError` if the process may open no more. It can be repeated as a whole.
    """

    def __init__(self, disk: Disk, layout: FileLayout) -> None:
        self._disk = disk
        self._layout = layout
        self.files = OpenFiles(disk)
        disk.spare.register("queues", self.files.close_one)
        self._unsynced: dict[str, None] = {}
        self._new_directories: dict[str, None] = {}

    @_job
    def write(self, batches: list[UnitBatch]) -> None:
        """Write every batch with stamps, with one pwrite for each file."""
        stamps = stamped([(batch.data, state(batch.seed, batch.offset)) for batch in batches])
        for (directory, offset, _, _), data in zip(batches, stamps, strict=True):
            view = memoryview(data)
            while view:
                take = min(len(view), self._layout.room(offset) * UNIT_BYTES)
                path = self._layout.path(directory, offset)
                self._open(directory, path, offset).pwrite(view[:take], self._layout.place(offset))
                self._unsynced[path] = None
                view = view[take:]
                offset += take // UNIT_BYTES

    def _open(self, directory: str, path: str, offset: int) -> File:
        try:
            return self.files.get(path)
        except FileNotFoundError:
            pass
        self._disk.mkdir(directory)
        for level in (directory, directory.rpartition("/")[0], DIRECTORY, "."):
            self._new_directories[level] = None
        file = self.files.get(path, create=True)
        try:
            file.pwrite(b"\0", self._layout.file_bytes - 1)  # the full size at once, sparse, as RocketMQ expects
            file.pwrite(FILLER * (self._layout.place(offset) // UNIT_BYTES), 0)
        except OSError:
            self.files.forget(path)  # otherwise the next attempt would take it for a finished file
            self._disk.unlink(path)
            raise
        return file

    def take_unsynced(self) -> list[str]:
        """Return the files written since the last call, after the directories that got new names."""
        paths = [*(f"{directory}/" for directory in self._new_directories), *self._unsynced]
        self._new_directories.clear()
        self._unsynced.clear()
        return paths

    def put_back(self, paths: list[str]) -> None:
        """Put paths back that `take_unsynced` returned and that were not synced. The next call returns them again."""
        for path in paths:
            (self._new_directories if path.endswith("/") else self._unsynced).setdefault(path.removesuffix("/"))

    @_job
    def sync(self, paths: list[str]) -> None:
        """Make files and directories (which end in `/`) durable. Paths that were removed meanwhile are skipped."""
        for path in paths:
            try:
                if path.endswith("/"):
                    self._disk.sync_dir(path[:-1])
                else:
                    self.files.get(path).datasync()
            except FileNotFoundError:
                continue

    @_job
    def sync_all(self, paths: list[str]) -> list[str]:
        """Make everything durable at once, if possible. Return the paths that remain for `sync`.

        A sync of its own for each of 20,000 files would take as many commits of the file system's journal.
        """
        return [] if self._disk.sync_all() else paths

    @_job
    def forget(self, directory: str) -> None:
        """Forget the open files of a queue, because other code may have removed or replaced them."""
        self.files.forget(directory + "/")

    @_job
    def remove_bad(self, directory: str, seed: int, start: int, end: int, *, everything: bool) -> BadUnits:
        """Remove the files of a queue that do not hold what was written between two offsets. With `everything`, remove
        all.
        """
        bad: list[tuple[int, int]] = []
        behind = 0
        offset = start
        while offset < end:
            after = min(end, offset + self._layout.room(offset))
            last = None if everything else self._last_position(directory, seed, offset, after)
            if last is None:
                path = self._layout.path(directory, offset)
                self.files.forget(path)
                self._disk.unlink(path)
                bad.append((offset, after))
            elif not bad:
                behind = last
            offset = after
        return BadUnits(bad, behind)

    def _last_position(self, directory: str, seed: int, offset: int, end: int) -> int | None:
        """Return the position in the last of some units of one file, None if they are not what was written."""
        while offset < end:
            count = min(end - offset, UNITS_PER_READ)
            try:
                file = self.files.get(self._layout.path(directory, offset))
                units = file.pread(count * UNIT_BYTES, self._layout.place(offset))
            except OSError as error:
                if is_lost(error):
                    return None
                raise
            if len(units) != count * UNIT_BYTES or not are_whole(units, seed, offset):
                return None
            offset += count
        return int.from_bytes(units[-UNIT_BYTES:][:8], "big")

    @_job
    def remove(self, directory: str) -> None:
        """Remove a directory with everything in it."""
        self.files.forget(directory + "/")
        self._disk.rmtree(directory)

    @_job
    def set_aside(self, topic: str, created_position: int) -> None:
        """Rename the directory of a deleted topic, durably, so that its name is free."""
        directory, aside = topic_directory(topic), deleted_directory(topic, created_position)
        self.files.forget(directory + "/")
        if self._disk.exists(aside):
            # the deletion is applied again: the directory that a checkpoint lists was renamed before
            self._disk.rmtree(directory)
        elif self._disk.exists(directory):
            self._disk.rename(directory, aside)
            self._disk.sync_dir(DIRECTORY)

    @_job
    def remove_below(self, directory: str, offset: int) -> None:
        """Remove the files of a queue that hold only units below `offset`."""
        try:
            names = self._disk.listdir(directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.isdigit() and self._layout.first_offset(name) + self._layout.units_per_file <= offset:
                self.files.forget(f"{directory}/{name}")
                self._disk.unlink(f"{directory}/{name}")

    @_job
    def close(self) -> None:
        """Close all files."""
        self.files.forget()
