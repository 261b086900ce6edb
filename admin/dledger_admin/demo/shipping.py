"""Sends files line by line, in order per file, many files at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable

from dledger_client import Message, Producer

from .corpus import SourceFile

NUMBER_PROPERTY = "line"
CLOSING_TAG = "closing"
"""The closing message of a file carries this tag, and the number of lines as its number."""

SEND_TIMEOUT_S = 30.0
_BATCH_LINES = 500
_BATCH_BYTES = 256 << 10


class Shipper:
    """Ships files to one topic; `messages` and `sent_bytes` count what was acknowledged.

    `acknowledged_at` holds the monotonic time of every acknowledgement, from which a gap in service can be read.
    """

    def __init__(self, producer: Producer, topic: str, on_acknowledged: Callable[[int, int], None]) -> None:
        self.messages = 0
        self.sent_bytes = 0
        self.acknowledged_at: list[float] = []
        self._producer = producer
        self._topic = topic
        self._on_acknowledged = on_acknowledged

    async def ship(self, files: Iterable[SourceFile], parallel: int) -> None:
        """Ship all files, `parallel` at a time; returns when everything is acknowledged."""
        remaining = iter(files)

        async def worker() -> None:
            for file in remaining:
                await self.ship_file(file)

        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(worker())

    async def ship_file(self, file: SourceFile) -> None:
        """Ship one file: its lines, then the closing message with their number."""
        batch: list[Message] = []
        size = 0
        count = 0
        for line in file.lines():
            batch.append(Message(line, key=file.key, properties={NUMBER_PROPERTY: str(count)}))
            count += 1
            size += len(line)
            if len(batch) >= _BATCH_LINES or size >= _BATCH_BYTES:
                await self._send(file.key, batch, size)
                batch, size = [], 0
        batch.append(Message(b"end", key=file.key, tags=CLOSING_TAG, properties={NUMBER_PROPERTY: str(count)}))
        await self._send(file.key, batch, size)

    async def _send(self, key: str, batch: list[Message], size: int) -> None:
        await self._producer.send_batch(self._topic, batch, ordering_key=key, timeout=SEND_TIMEOUT_S)
        self.acknowledged_at.append(time.monotonic())
        self.messages += len(batch)
        self.sent_bytes += size
        self._on_acknowledged(len(batch), size)


def longest_pause_ms(times: list[float], since: float) -> float:
    """Return the longest time without an acknowledgement from `since` on, in milliseconds."""
    later = [since, *(at for at in times if at > since)]
    return 1000 * max((after - before for before, after in itertools.pairwise(later)), default=0.0)
