"""Window of a producer's requests under way.

It limits these requests, so that further sends wait, and counts the calls for which a close must wait.
"""

from __future__ import annotations

import asyncio
from collections import deque


class InFlightWindow:
    """A bound on requests and on bytes under way. Requests that do not fit wait, first come, first served.

    A request larger than `max_bytes` goes alone. Belongs to one event loop.
    """

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._requests = 0
        self._bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def requests(self) -> int:
        """Number of requests under way."""
        return self._requests

    async def acquire(self, size_bytes: int, deadline: float) -> None:
        """Enter with a request of this size. Raises TimeoutError if there is no room by `deadline`."""
        if not self._waiters and self._fits(size_bytes):
            self._enter(size_bytes)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size_bytes, waiter)
        self._waiters.append(entry)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release(size_bytes)
            else:
                if entry in self._waiters:  # a release in the same turn of the loop has skipped it already
                    self._waiters.remove(entry)
                self._admit()
            raise

    def release(self, size_bytes: int) -> None:
        """Leave with a request of this size."""
        self._requests -= 1
        self._bytes -= size_bytes
        if self._waiters:
            self._admit()

    def _fits(self, size_bytes: int) -> bool:
        return not self._requests or (
            self._requests < self._max_requests and self._bytes + size_bytes <= self._max_bytes
        )

    def _enter(self, size_bytes: int) -> None:
        self._requests += 1
        self._bytes += size_bytes

    def _admit(self) -> None:
        while self._waiters and self._fits(self._waiters[0][0]):
            size_bytes, waiter = self._waiters.popleft()
            if not waiter.done():
                self._enter(size_bytes)
                waiter.set_result(None)


class CallsUnderWay:
    """Counts calls, each a `with` block, for callers that wait until all have ended. Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._all_ended = asyncio.Event()
        self._all_ended.set()

    def __enter__(self) -> None:
        self._count += 1
        self._all_ended.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self._all_ended.set()

    async def ended(self) -> None:
        """Wait until no call is under way."""
        await self._all_ended.wait()
