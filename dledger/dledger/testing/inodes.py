"""Files of a simulated disk: their content in the page cache and on the platter, and the faults that strike them."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

SECTOR_BYTES = 512
PAGE_BYTES = 4096
"""Size of a page in bytes. The system reads whole pages, so one bad sector makes all of a page unreadable."""

Keep = Literal["none", "random", "all"]
"""Part of the unsynced changes that a crash leaves."""


class Inode:
    """Bytes of one file: as the page cache shows them, and as they are on the platter."""

    __slots__ = ("blocks", "cached", "durable", "mtime_ms", "pending", "unreadable")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.blocks: set[int] = set()
        self.mtime_ms = 0
        self.unreadable: set[int] = set()
        """Numbers of the pages with a bad sector, until they are written whole."""

    def can_read(self, offset: int, size: int) -> bool:
        """Return whether no page of a range is unreadable."""
        end = min(offset + size, len(self.cached))
        return self.unreadable.isdisjoint(range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)))

    def can_write(self, offset: int, size: int) -> bool:
        """Return whether no unreadable page would be written in part: the system would have to read it first."""
        edges = {at // PAGE_BYTES for at in (offset, offset + size) if at % PAGE_BYTES}
        return self.unreadable.isdisjoint(edges)

    def sync_failed(self, *, shows_old: bool) -> None:
        """Drop the pending writes, so that no later sync makes them durable.

        Reads continue to show them, or with `shows_old` the bytes on the platter.
        """
        self.pending.clear()
        if shows_old:
            length = len(self.cached)
            self.cached[:] = self.durable[:length]
            grow(self.cached, length)

    def settle(self, count: int) -> None:
        """Bring the first `count` pending writes and the length to the platter."""
        for offset, data in self.pending[:count]:
            overwrite(self.durable, offset, data)
        del self.pending[:count]
        grow(self.durable, len(self.cached))

    def crash(self, rng: random.Random, keep: Keep) -> None:
        """Lose the page cache. `keep` says which pending writes had reached the platter."""
        for offset, data in self.pending:
            if keep == "all":
                overwrite(self.durable, offset, data)
            elif keep == "random":
                self._tear(rng, offset, data)
        if keep == "all" or (keep == "random" and rng.random() < 0.5):
            grow(self.durable, len(self.cached))
        self.pending.clear()
        self.cached = bytearray(self.durable)

    def _tear(self, rng: random.Random, offset: int, data: bytes) -> None:
        share = rng.choice((0.0, rng.random(), 1.0))
        begin = offset
        while begin < offset + len(data):
            end = min(offset + len(data), (begin // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if rng.random() < share:
                overwrite(self.durable, begin, data[begin - offset : end - offset])
            begin = end


def grow(content: bytearray, size: int) -> None:
    """Lengthen a file with zeros."""
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def overwrite(content: bytearray, offset: int, data: bytes) -> None:
    """Write bytes, with zeros before them if the file is shorter."""
    grow(content, offset)
    content[offset : offset + len(data)] = data


@dataclass(slots=True)
class DiskFault:
    """Fault that makes operations that `matches` (operation name, path) fail, once or until removed.

    `number` is the error number. With `torn` a failing write writes the first half of what it changes.
    """

    matches: Callable[[str, str], bool]
    number: int = errno.EIO
    once: bool = True
    torn: bool = False


class TornWriteError(OSError):
    """A write failed in its middle."""


@dataclass(frozen=True, slots=True)
class DiskImage:
    """Copy of all files and directories."""

    files: dict[str, bytes]
    directories: frozenset[str]
