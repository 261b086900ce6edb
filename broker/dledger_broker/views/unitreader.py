"""Reader of consume queues' files: out of the page cache on the event loop, from the disk on workers.

The event loop opens and closes nothing: it reads through files that a worker had to open for a read, and left open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeAlias

from dledger.environment import BACKGROUND, COLD, Environment
from dledger.errors import CorruptionError
from dledger.loop_guard import excepted
from dledger.store.disk import Disk, File
from dledger_broker.views.unitfiles import MAX_OPEN_FILES, FileLayout
from dledger_broker.views.units import UNIT_BYTES

UnitPlace: TypeAlias = tuple[bytes | None, int, int, int]
"""Units of a queue: themselves, or the descriptor of their file, the byte at which they begin, and how many they are.
The descriptor is good for this turn of the event loop."""


def read_units(
    disk: Disk, layout: FileLayout, directory: str, offset: int, count: int, opened: dict[str, File] | None = None
) -> bytes:
    """Up to `count` units from `offset` on, across files.  Blocks; what it opens is put into `opened`, or closed again.

    Raises `CorruptionError` if a file lacks them: somebody removed or cut it while the broker was running.
    """
    parts: list[bytes] = []
    while count > 0:
        take = min(count, layout.room(offset))
        path = layout.path(directory, offset)
        try:
            file = disk.open(path)
        except FileNotFoundError:
            raise _missing(path, offset) from None
        try:
            data = file.pread(take * UNIT_BYTES, layout.place(offset))
        finally:
            if opened is None:
                file.close()
            else:
                opened[path] = file
        if len(data) != take * UNIT_BYTES:
            raise _missing(path, offset)
        parts.append(data)
        offset += take
        count -= take
    return b"".join(parts)


def _missing(path: str, offset: int) -> CorruptionError:
    return CorruptionError(
        f"{path} lacks the unit of queue offset {offset}; restart this node: it rebuilds the file from its log"
    )


class QueueFileReader:
    """At most `limit` files stay open, the least recently used are closed first.  For the event loop."""

    def __init__(self, disk: Disk, env: Environment, layout: FileLayout, limit: int = MAX_OPEN_FILES) -> None:
        self._disk = disk
        self._env = env
        self._layout = layout
        self._limit = limit
        self._files: OrderedDict[str, File] = OrderedDict()
        self._forgotten = 0
        """How often files lost their names: what was opened before may be of a queue that is gone."""
        self._closed = False

    def read_nowait(self, directory: str, offset: int, count: int) -> bytes | None:
        """Up to `count` units from `offset` on, of one file; None if that needs the disk or a file that is not open."""
        path = self._layout.path(directory, offset)
        file = self._files.get(path)
        if file is None:
            return None
        self._files.move_to_end(path)
        take = min(count, self._layout.room(offset))
        return file.pread_nowait(take * UNIT_BYTES, self._layout.place(offset))

    def place(self, directory: str, offset: int, count: int) -> UnitPlace | None:
        """Where up to `count` units from `offset` on lie in one file; None if it is not open, or has no descriptor."""
        path = self._layout.path(directory, offset)
        file = self._files.get(path)
        descriptor = None if file is None else file.descriptor
        if descriptor is None:
            return None
        self._files.move_to_end(path)
        return None, descriptor, self._layout.place(offset), min(count, self._layout.room(offset))

    def read(self, directory: str, offset: int, count: int, done: Callable[[bytes | BaseException], None]) -> None:
        """As `read_units`, on a worker; `read_nowait` finds the files open from then on.

        `done` gets the units, or `CorruptionError`, `BusyError` or `OSError`.
        """
        opened: dict[str, File] = {}
        forgotten = self._forgotten

        def finished(result: bytes | BaseException) -> None:
            self._keep(opened, unless=forgotten != self._forgotten)
            done(result)

        work = partial(read_units, self._disk, self._layout, directory, offset, count, opened)
        self._env.run_blocking(COLD, work, finished)

    def forget(self, prefix: str) -> None:
        """The files whose path starts with `prefix` were removed or will be."""
        self._forget([path for path in self._files if path.startswith(prefix)])

    def forget_in(self, directories: Collection[str]) -> None:
        """Some files of these queues were removed or will be."""
        self._forget([path for path in self._files if path.rpartition("/")[0] in directories])

    def close(self) -> list[File]:
        """Keep nothing open any more; what is returned is to be closed by a worker."""
        self._closed = True
        files = list(self._files.values())
        self._files.clear()
        return files

    def _forget(self, paths: Iterable[str]) -> None:
        self._forgotten += 1
        self._close([self._files.pop(path) for path in paths])

    def _keep(self, opened: dict[str, File], *, unless: bool) -> None:
        surplus: list[File] = []
        for path, file in opened.items():
            if unless or self._closed or path in self._files:
                surplus.append(file)
            else:
                self._files[path] = file
        while len(self._files) > self._limit:
            surplus.append(self._files.popitem(last=False)[1])
        self._close(surplus)

    def _close(self, files: list[File]) -> None:
        if self._closed:
            with excepted("the node ends, and may have no workers any more"):
                close_all(files)
        elif files:
            self._env.run_blocking(BACKGROUND, partial(close_all, files), lambda _: None)


def close_all(files: Iterable[File]) -> None:
    """Close files.  Blocks."""
    for file in files:
        file.close()
