"""Limit of the rows that a task writes in a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

PIECES_PER_SECOND: Final = 10
"""Number of slices in which the rows of a second are sent, so that they are not sent in bursts."""
BURST_S: Final = 0.5
"""Maximum idle time in seconds that later rows may make up for."""


class Pace:
    """Holds rows back so that at most `rows_per_second` are sent; None is no limit."""

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._due_at: float | None = None

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in slices, before each of which the caller must call `wait`."""
        if self._rows_per_second is None:
            yield batch
            return
        size = max(1, self._rows_per_second // PIECES_PER_SECOND)
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)

    async def wait(self, rows: int) -> None:
        """Wait until the next `rows` rows may be sent."""
        if self._rows_per_second is None:
            return
        now = self._clock()
        due_at = now if self._due_at is None else max(self._due_at, now - BURST_S)
        self._due_at = due_at + rows / self._rows_per_second
        if due_at > now:
            await self._sleep(due_at - now)
