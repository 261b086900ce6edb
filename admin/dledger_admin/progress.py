"""Progress of long commands, told on standard error every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dledger.store.disk import OsDisk, OsFile

from .output import say

INTERVAL_S: Final = 5.0
"""Interval between two lines, and from the start to the first one: a command that is quick says nothing."""


class Progress:
    """Says how far a command is, at most every `INTERVAL_S` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_line_at = clock() + INTERVAL_S

    def tell(self, text: str) -> None:
        """Say a text if that is due; call this after each step."""
        if self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + INTERVAL_S
            say(text)


class WatchedDisk(OsDisk):
    """A directory that is only read. `on_read` is called after each read, with the sum of the bytes so far."""

    def __init__(self, root: str, on_read: Callable[[int], None]) -> None:
        super().__init__(root, read_only=True)
        self._on_read = on_read
        self._read_bytes = 0

    def open(self, path: str, *, create: bool = False, write_through: bool = False) -> OsFile:
        """Open a file whose reads are counted."""
        file = super().open(path, create=create, write_through=write_through)
        return _WatchedFile(file.descriptor, path, self._count)

    def _count(self, size: int) -> None:
        self._read_bytes += size
        self._on_read(self._read_bytes)


class _WatchedFile(OsFile):
    """A file that tells of its reads."""

    def __init__(self, descriptor: int, path: str, on_read: Callable[[int], None]) -> None:
        super().__init__(descriptor, path)
        self._on_read = on_read

    def pread(self, size: int, offset: int) -> bytes:
        """Read, and tell how much."""
        data = super().pread(size, offset)
        self._on_read(len(data))
        return data
