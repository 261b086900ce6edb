"""No more bytes a second than told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 0.5
"""So much of the time in which nothing was read may be made up for."""
REQUESTS_PER_SECOND: Final = 4
"""Reads are made so small that about so many make a second's bytes."""
MIN_REQUEST_BYTES: Final = 64 << 10


class Throttle:
    """Holds a reader back so that it reads at most `bytes_per_second`; None holds nothing back."""

    def __init__(
        self,
        bytes_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = 0.0

    def request_bytes(self, maximum: int) -> int:
        """How much to ask for at a time."""
        if self._bytes_per_second is None:
            return maximum
        return min(maximum, max(MIN_REQUEST_BYTES, self._bytes_per_second // REQUESTS_PER_SECOND))

    def spend(self, size: int) -> None:
        """Wait until `size` bytes that were read are no more than may have been read."""
        if self._bytes_per_second is None:
            return
        now = self._clock()
        self._due = max(self._due, now - BURST_S) + size / self._bytes_per_second
        if self._due > now:
            self._sleep(self._due - now)
