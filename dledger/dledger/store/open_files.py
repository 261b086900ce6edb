"""Open files of segments: as many as a limit allows; the least recently used are closed first.

A log has more segments than a process may have files. A reader opens a segment's file, and the file stays open until
others take its place. Files that are being written stay open (`Segment.keep_open`).
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final, Protocol

MAX_OPEN: Final = 256
SHARE: Final = 8
"""Share of the process's files that each user of a directory may open: 1 in so many.

Clients, peers and indexes need the rest.
"""
MIN_OPEN: Final = 8


class Closeable(Protocol):
    """Something with an open file."""

    def close_idle(self) -> bool:
        """Close the file unless it is in use, and return whether it is closed. Never waits for a user of the file."""


def share_of_files() -> int:
    """Return the maximum number of files that one user of a directory keeps open.

    Users are the log's segments, the writer of queues and the reader of queues. The limit of the process must be raised
    before, because it is read here.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN
    return max(MIN_OPEN, min(MAX_OPEN, soft // SHARE))


class SpareFiles:
    """Users of a directory who can close an idle file when the process may open no more.

    All users are asked, so that files that one user keeps open for later do not make another user wait.
    """

    def __init__(self) -> None:
        self._close_idle_callbacks: dict[str, Callable[[], bool]] = {}

    def register(self, user: str, close_one: Callable[[], bool]) -> None:
        """Ask `close_one` from now on, on any thread, in place of this user's former callback.

        It returns whether it has closed a file, and never waits for a user of a file. It may block on the disk.
        """
        self._close_idle_callbacks[user] = close_one

    @property
    def users(self) -> frozenset[str]:
        """Names of the registered users of files."""
        return frozenset(self._close_idle_callbacks)

    def close_one(self) -> bool:
        """Have one file closed; False if no user has an idle file. Blocks."""
        return any(close() for close in list(self._close_idle_callbacks.values()))


class OpenFiles:
    """Segments with an open file, ordered by last use. Methods may be called on any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: OrderedDict[Closeable, None] = OrderedDict()
        self._lock = Lock()
        self._last: Closeable | None = None
        """The file at the end of the order, if it is known. Most reads use the same file as the read before."""

    def __len__(self) -> int:
        return len(self._order)

    def add(self, file: Closeable) -> None:
        """Add an open file that may be closed again. Memory only: `close_surplus` is due."""
        with self._lock:
            self._order[file] = None
            self._last = None

    def note_opened(self, file: Closeable) -> None:
        """Add a file that was opened, and close files beyond the limit. Blocks."""
        self.add(file)
        self.close_surplus()

    def close_surplus(self) -> None:
        """Close idle files beyond the limit. Blocks."""
        with self._lock:
            surplus = len(self._order) - self._limit
            candidates = list(self._order)[:-1] if surplus > 0 else []
        self._close(candidates, surplus)

    def note_used(self, file: Closeable) -> None:
        """Note that a file is being used. Memory only."""
        if file is self._last:
            return
        with self._lock:
            if file in self._order:
                self._order.move_to_end(file)
                self._last = file

    def note_closed(self, file: Closeable) -> None:
        """Note that a file was closed. Memory only."""
        with self._lock:
            self._order.pop(file, None)
            self._last = None

    def spare_one(self) -> bool:
        """Close one idle file, if there is one, because the process may open no more. Blocks."""
        with self._lock:
            candidates = list(self._order)
        return self._close(candidates, 1) > 0

    def close_all(self) -> None:
        """Close all idle files. Blocks."""
        with self._lock:
            candidates = list(self._order)
        self._close(candidates, len(candidates))

    def _close(self, candidates: list[Closeable], count: int) -> int:
        closed = 0
        for file in candidates:
            if closed >= count:
                break
            closed += file.close_idle()
        return closed
