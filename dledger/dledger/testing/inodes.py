"""Files and names of a simulated disk: what the page cache shows, and what is on the platter."""

from __future__ import annotations

import posixpath
import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

SECTOR_BYTES = 512

Keep = Literal["none", "random", "all"]
"""What a crash leaves of that which was not synced."""


@lru_cache(maxsize=1 << 14)
def normal(path: str) -> str:
    """A path as the tree has it."""
    return posixpath.normpath(path.lstrip("/") or ".")


@lru_cache(maxsize=1 << 14)
def parent(path: str) -> str:
    """The directory of a path."""
    return posixpath.dirname(path) or "."


class Inode:
    """The bytes of one file: as the page cache shows them, and as they are on the platter."""

    __slots__ = ("blocks", "cached", "durable", "mtime_ms", "pending")

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes]] = []
        self.blocks: set[int] = set()
        self.mtime_ms = 0

    def settle(self, count: int) -> None:
        """The first so many pending writes reach the platter, and the length."""
        for offset, data in self.pending[:count]:
            overwrite(self.durable, offset, data)
        del self.pending[:count]
        grow(self.durable, len(self.cached))

    def crash(self, rng: random.Random, keep: Keep) -> None:
        """The page cache is lost; `keep` says what of the pending writes had reached the platter."""
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
    """Lengthen with zeros."""
    if len(content) < size:
        content.extend(bytes(size - len(content)))


def overwrite(content: bytearray, offset: int, data: bytes) -> None:
    """Write, behind a hole of zeros if need be."""
    grow(content, offset)
    content[offset : offset + len(data)] = data


@dataclass(slots=True, frozen=True)
class Change:
    """One change of the directory tree; `inode` for a new file, `target` for a rename."""

    kind: Literal["link", "mkdir", "rename", "unlink"]
    path: str
    target: str = ""
    inode: Inode | None = None

    def touches(self, directory: str) -> bool:
        return directory == parent(self.path) or (self.target != "" and directory == parent(self.target))


class Tree:
    """Names: files by path, and directories."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = {"."}

    def copy(self) -> Tree:
        twin = Tree()
        twin.files = dict(self.files)
        twin.directories = set(self.directories)
        return twin

    def apply(self, change: Change) -> None:
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
