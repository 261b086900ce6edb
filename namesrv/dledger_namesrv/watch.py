"""Long polls for route changes: who waits for which topics, woken at most once per turn of the event loop."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from .table import RouteTable


class _Watch(NamedTuple):
    topics: tuple[str, ...]
    version: int
    woken: asyncio.Future[None]
    size: int


class RouteWatches:
    """The pending watches of one route table; `notify` after each change of the table."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._watches: set[_Watch] = set()
        self.held_bytes = 0
        """What the requests of those that wait take."""
        self._seen_version = table.version
        self._scheduled = False

    def __len__(self) -> int:
        """How many watches wait."""
        return len(self._watches)

    async def wait(self, topics: tuple[str, ...], version: int, timeout_s: float, size: int) -> int:
        """Return the table's version once one of the topics has changed since `version`, or when the time is up.

        `size` is what the request takes, in bytes.
        """
        if not self._table.changed_since(topics, version):
            watch = _Watch(topics, version, asyncio.get_running_loop().create_future(), size)
            self._watches.add(watch)
            self.held_bytes += size
            try:
                await asyncio.wait([watch.woken], timeout=timeout_s)
            finally:
                self._watches.discard(watch)
                self.held_bytes -= size
        return self._table.version

    def notify(self) -> None:
        """Look at the watches at the end of this turn if the table has changed."""
        if self._table.version != self._seen_version and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._wake)

    def release(self) -> None:
        """Answer every watch now."""
        for watch in self._watches:
            if not watch.woken.done():
                watch.woken.set_result(None)

    def _wake(self) -> None:
        self._scheduled = False
        self._seen_version = self._table.version
        for watch in self._watches:
            if not watch.woken.done() and self._table.changed_since(watch.topics, watch.version):
                watch.woken.set_result(None)
