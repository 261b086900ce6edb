"""Reader of consume queues' files: from the page cache on the event loop, from the disk on workers.

The event loop neither opens nor closes files. It reads through files that a worker opened for a read and left open.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TypeAlias

from dledger.environment import BACKGROUND, COLD, Environment
from dledger.errors import BusyError, CorruptionError
from dledger.store.disk import Disk, File
from dledger.store.open_files import share_of_files
from dledger.store.unreadable import is_lost
from dledger_base.loop_guard import excepted
from dledger_broker.views.stamps import are_whole, state
from dledger_broker.views.unitfiles import FileLayout
from dledger_broker.views.unitfiles import opened as opened_file
from dledger_broker.views.units import UNIT_BYTES

UnitPlace: TypeAlias = tuple[bytes | None, int, int, int, int, int]
"""Units of a queue, or their place in a file.

The place is the file's descriptor, the byte at which the units begin, their number, and the states of their stamps
before and after. The descriptor is valid in this turn of the event loop.
"""


def read_units(
    disk: Disk,
    layout: FileLayout,
    directory: str,
    seed: int,
    offset: int,
    count: int,
    opened: dict[str, File] | None = None,
) -> bytes:
    """Return up to `count` units from `offset` on, across files. Blocks. Files are put into `opened`, or closed again.

    Raises `CorruptionError` if a file lacks them, their stamps fail, or the disk cannot read them. Raises `BusyError`
    if the process may open no more files.
    """
    parts: list[bytes] = []
    while count > 0:
        take = min(count, layout.room(offset))
        path = layout.path(directory, offset)
        try:
            file = opened_file(disk, path)
        except OSError as error:
            raise _damaged(path, offset, error) from None
        if file is None:
            raise BusyError(f"{path} cannot be opened now: the process may open no more files")
        try:
            data = file.pread(take * UNIT_BYTES, layout.place(offset))
        except OSError as error:
            raise _damaged(path, offset, error) from None
        finally:
            if opened is None:
                file.close()
            else:
                opened[path] = file
        if len(data) != take * UNIT_BYTES:
            raise _damage(path, offset, f"{len(data)} bytes, expected {take * UNIT_BYTES}")
        if not are_whole(data, seed, offset):
            raise _damage(path, offset, f"{take} units whose stamps fail")
        parts.append(data)
        offset += take
        count -= take
    return b"".join(parts)


def _damaged(path: str, offset: int, error: OSError) -> CorruptionError | OSError:
    if is_lost(error):
        return _damage(path, offset, str(error))
    return error


def _damage(path: str, offset: int, found: str) -> CorruptionError:
    return CorruptionError(f"{path} at queue offset {offset}: {found}; this node writes the file anew from its log")


class QueueFileReader:
    """Reader of the files, for the event loop. At most `limit` files stay open, and the least recently used is closed
    first.
    """

    def __init__(self, disk: Disk, env: Environment, layout: FileLayout, limit: int | None = None) -> None:
        self._disk = disk
        self._env = env
        self._layout = layout
        self._limit = share_of_files() if limit is None else limit
        self._files: OrderedDict[str, File] = OrderedDict()
        self._forgotten = 0
        """Number of times that files lost their names. A file opened before the last time may belong to a queue that is
        gone.
        """
        self._closed = False

    def read_nowait(self, directory: str, seed: int, offset: int, count: int) -> bytes | None:
        """Return up to `count` units from `offset` on, of one file. None if that needs the disk or a file that is not
        open.

        Raises `CorruptionError` as `read_units` does.
        """
        path = self._layout.path(directory, offset)
        file = self._files.get(path)
        if file is None:
            return None
        self._files.move_to_end(path)
        take = min(count, self._layout.room(offset))
        try:
            units = file.pread_nowait(take * UNIT_BYTES, self._layout.place(offset))
        except OSError as error:
            raise _damaged(path, offset, error) from None
        if units is not None and not are_whole(units, seed, offset):
            raise _damage(path, offset, f"{take} units whose stamps fail")
        return units

    def place(self, directory: str, seed: int, offset: int, count: int) -> UnitPlace | None:
        """Return the place of up to `count` units in one file from `offset` on. None if it is not open, or has no
        descriptor.
        """
        path = self._layout.path(directory, offset)
        file = self._files.get(path)
        descriptor = None if file is None else file.descriptor
        if descriptor is None:
            return None
        self._files.move_to_end(path)
        count = min(count, self._layout.room(offset))
        return None, descriptor, self._layout.place(offset), count, state(seed, offset), state(seed, offset + count)

    def read(
        self, directory: str, seed: int, offset: int, count: int, done: Callable[[bytes | BaseException], None]
    ) -> None:
        """Read as `read_units` does, on a worker. `read_nowait` finds the files open from then on.

        `done` gets the units, or `CorruptionError`, `BusyError` or `OSError`.
        """
        opened: dict[str, File] = {}
        forgotten = self._forgotten

        def finished(result: bytes | BaseException) -> None:
            self._keep(opened, unless=forgotten != self._forgotten)
            if isinstance(result, BusyError):
                self._close_half()
            done(result)

        work = partial(read_units, self._disk, self._layout, directory, seed, offset, count, opened)
        self._env.run_blocking(COLD, work, finished)

    def forget(self, prefix: str) -> None:
        """Close the files whose path starts with `prefix`, which were removed or will be."""
        self._forget([path for path in self._files if path.startswith(prefix)])

    def forget_in(self, directories: Collection[str]) -> None:
        """Close the files of these queues, some of which were removed or will be."""
        self._forget([path for path in self._files if path.rpartition("/")[0] in directories])

    def close(self) -> list[File]:
        """Keep no file open any more. Return the open files, which a worker has to close."""
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

    def _close_half(self) -> None:
        """Close half of the files after a file could not be opened, so that a repeated read finds room."""
        self._close([self._files.popitem(last=False)[1] for _ in range(-(-len(self._files) // 2))])

    def _close(self, files: list[File]) -> None:
        if self._closed:
            with excepted("the node ends, and may have no workers any more"):
                close_all(files)
        elif files:
            self._env.run_blocking(BACKGROUND, partial(close_all, files), lambda _: None)


def close_all(files: Iterable[File]) -> None:
    """Close files. Blocks."""
    for file in files:
        file.close()
