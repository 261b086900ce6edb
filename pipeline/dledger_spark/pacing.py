"""No more rows a second than told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

PIECES_PER_SECOND: Final = 10
"""Rows are let through in pieces of a tenth of a second's, so that they do not come in bursts."""


class Pace:
    """Holds rows back so that from the first one on at most `rows_per_second` go through; None lets all through."""

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._began: float | None = None
        self._rows = 0

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """A batch in pieces, before each of which `wait` is to be called."""
        if self._rows_per_second is None:
            yield batch
            return
        size = max(1, self._rows_per_second // PIECES_PER_SECOND)
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)

    async def wait(self, rows: int) -> None:
        """Wait until the next `rows` rows may go."""
        if self._rows_per_second is None:
            return
        now = self._clock()
        if self._began is None:
            self._began = now
        ahead_s = self._began + self._rows / self._rows_per_second - now
        self._rows += rows
        if ahead_s > 0:
            await self._sleep(ahead_s)
