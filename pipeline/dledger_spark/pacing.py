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
BURST_S: Final = 0.5
"""So much time in which no rows came is made up for."""


class Pace:
    """Holds rows back so that at most `rows_per_second` go through; None lets all through."""

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._due: float | None = None

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
        due = now if self._due is None else max(self._due, now - BURST_S)
        self._due = due + rows / self._rows_per_second
        if due > now:
            await self._sleep(due - now)
