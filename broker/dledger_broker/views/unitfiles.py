"""The files of consume queues: their names, and how they are written.  Every call that touches one blocks."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from dledger.store.disk import Disk, File
from dledger_broker.views.units import FILLER, UNIT_BYTES, UNITS_PER_FILE

DIRECTORY = "consumequeue"
DELETED_PREFIX = ".deleted-"
"""Begins the name of a deleted topic's directory until a checkpoint no longer lists the topic."""
MAX_NAME_BYTES = 255
"""Of a file or directory, on the usual file systems; names of topics have no other characters than ASCII's."""
MAX_OPEN_FILES = 256
"""Files that reading and writing keep open, each; others are opened again when they are needed."""


_KEPT_NAMES = 1024
"""Names that need not be put together again for the next read."""


class UnitBatch(NamedTuple):
    """Units of one queue to write: its directory, the offset of the first, and the bytes."""

    directory: str
    offset: int
    data: bytes


@lru_cache(maxsize=_KEPT_NAMES)
def queue_directory(topic: str, queue_id: int) -> str:
    """Where the files of a queue are."""
    return f"{DIRECTORY}/{topic}/{queue_id}"


def topic_directory(topic: str) -> str:
    """Where the queues of a topic are."""
    return f"{DIRECTORY}/{topic}"


def deleted_directory(topic: str, created_position: int) -> str:
    """What the directory of a deleted topic is called; a name too long for a directory is told by its digest."""
    name = f"{DELETED_PREFIX}{created_position}-{topic}"
    if len(name) > MAX_NAME_BYTES:
        name = f"{DELETED_PREFIX}{created_position}-{sha256(topic.encode()).hexdigest()}"
    return f"{DIRECTORY}/{name}"


class FileLayout(NamedTuple):
    """How units are spread over files."""

    units_per_file: int = UNITS_PER_FILE

    @property
    def file_bytes(self) -> int:
        """The size of every file."""
        return self.units_per_file * UNIT_BYTES

    def path(self, directory: str, offset: int) -> str:
        """The file of a queue that holds the unit at an offset."""
        return _path(directory, offset // self.units_per_file * self.file_bytes)

    def first_offset(self, name: str) -> int:
        """The offset of the first unit of a file."""
        return int(name) // UNIT_BYTES

    def place(self, offset: int) -> int:
        """The byte in its file at which the unit at an offset starts."""
        return offset % self.units_per_file * UNIT_BYTES

    def room(self, offset: int) -> int:
        """Units from an offset to the end of its file."""
        return self.units_per_file - offset % self.units_per_file


@lru_cache(maxsize=_KEPT_NAMES)
def _path(directory: str, first_byte: int) -> str:
    return f"{directory}/{first_byte:020d}"


class OpenFiles:
    """At most `limit` open files, the least recently used closed first.  Belongs to one thread at a time."""

    def __init__(self, disk: Disk, limit: int = MAX_OPEN_FILES) -> None:
        self._disk = disk
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()

    def get(self, path: str, *, create: bool = False) -> File:
        """The open file; a missing one without `create` raises FileNotFoundError."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        file = self._disk.open(path, create=create)
        self._files[path] = file
        if len(self._files) > self._limit:
            self._files.popitem(last=False)[1].close()
        return file

    def __len__(self) -> int:
        return len(self._files)

    def forget(self, prefix: str = "") -> None:
        """Close the files whose path starts with `prefix`."""
        for path in [path for path in self._files if path.startswith(prefix)]:
            self._files.pop(path).close()


class QueueFileWriter:
    """Writes units and remembers which files wait for a sync.  Used by the view writer's jobs only."""

    def __init__(self, disk: Disk, layout: FileLayout) -> None:
        self._disk = disk
        self._layout = layout
        self._files = OpenFiles(disk)
        self._unsynced: dict[str, None] = {}
        self._new_directories: dict[str, None] = {}

    def write(self, batches: list[UnitBatch]) -> None:
        """Write every batch, one pwrite for each file it touches."""
        for directory, offset, data in batches:
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
            return self._files.get(path)
        except FileNotFoundError:
            pass
        self._disk.mkdir(directory)
        for level in (directory, directory.rpartition("/")[0], DIRECTORY, "."):
            self._new_directories[level] = None
        file = self._files.get(path, create=True)
        try:
            file.pwrite(b"\0", self._layout.file_bytes - 1)  # the full size at once, sparse: what RocketMQ expects
            file.pwrite(FILLER * (self._layout.place(offset) // UNIT_BYTES), 0)
        except OSError:
            self._files.forget(path)  # the next attempt must not take it for a finished one
            self._disk.unlink(path)
            raise
        return file

    def take_unsynced(self) -> list[str]:
        """The files written since the last call, and before them the directories that got new names."""
        paths = [*(f"{directory}/" for directory in self._new_directories), *self._unsynced]
        self._new_directories.clear()
        self._unsynced.clear()
        return paths

    def put_back(self, paths: list[str]) -> None:
        """What `take_unsynced` returned was not synced: it waits for the next call."""
        for path in paths:
            (self._new_directories if path.endswith("/") else self._unsynced).setdefault(path.removesuffix("/"))

    def sync(self, paths: list[str]) -> None:
        """Make files and directories (which end in `/`) durable; those removed meanwhile need it no longer."""
        for path in paths:
            try:
                if path.endswith("/"):
                    self._disk.sync_dir(path[:-1])
                else:
                    self._files.get(path).datasync()
            except FileNotFoundError:
                continue

    def sync_all(self, paths: list[str]) -> list[str]:
        """Make everything durable at once, where that can be done; returns the paths that `sync` is left for.

        With a sync of its own each of 20,000 files takes a commit of the file system's journal.
        """
        return [] if self._disk.sync_all() else paths

    def remove(self, directory: str) -> None:
        """Remove a directory with everything in it."""
        self._files.forget(directory + "/")
        self._disk.rmtree(directory)

    def set_aside(self, topic: str, created_position: int) -> None:
        """Give the directory of a deleted topic its other name, durably, so that its name is free."""
        directory, aside = topic_directory(topic), deleted_directory(topic, created_position)
        self._files.forget(directory + "/")
        if self._disk.exists(aside):
            self._disk.rmtree(directory)  # the deletion is applied anew: what a checkpoint lists has the other name
        elif self._disk.exists(directory):
            self._disk.rename(directory, aside)
            self._disk.sync_dir(DIRECTORY)

    def remove_below(self, directory: str, offset: int) -> None:
        """Remove the files of a queue that hold only units below `offset`."""
        try:
            names = self._disk.listdir(directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.isdigit() and self._layout.first_offset(name) + self._layout.units_per_file <= offset:
                self._files.forget(f"{directory}/{name}")
                self._disk.unlink(f"{directory}/{name}")

    def close(self) -> None:
        """Close all files."""
        self._files.forget()
