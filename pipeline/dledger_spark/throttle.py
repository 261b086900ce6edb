"""Limit of the bytes that a task reads in a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.5
"""Maximum idle time in seconds that a reader may make up for."""
REQUESTS_PER_SECOND: Final = 4
"""Number of requests over which the bytes of a second are spread."""
MIN_REQUEST_BYTES: Final = 64 << 10


class Throttle:
    """Makes a reader wait so that it reads at most `bytes_per_second`; None is no limit."""

    def __init__(
        self,
        bytes_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due_at = 0.0

    def request_bytes(self, maximum: int) -> int:
        """Return the number of bytes to ask for in one request, at most `maximum`."""
        if self._bytes_per_second is None:
            return maximum
        return min(maximum, max(MIN_REQUEST_BYTES, self._bytes_per_second // REQUESTS_PER_SECOND))

    def spend(self, size: int) -> None:
        """Count `size` bytes that were read, and wait until the limit allows for them."""
        if self._bytes_per_second is None:
            return
        now = self._clock()
        self._due_at = max(self._due_at, now - BURST_S) + size / self._bytes_per_second
        if self._due_at > now:
            self._sleep(self._due_at - now)
