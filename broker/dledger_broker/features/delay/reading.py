"""Reads of records whose rows are due or must be moved: from memory at once, from disk without blocking the event loop.

A record whose due time differs from its row has rotted on this node. Nothing is done with it until it is healed:

1. A bit of a waiting message's due time flips on the leader's disk. The body and its checksum are intact.
2. If the leader moved or delivered the message, the wrong copy would be in the log of every node. Nothing could heal
   it.

See `docs/decisions/contradicted-rows-are-set-aside.md`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from dledger.errors import LogError
from dledger.log import Log
from dledger_broker.features.delay.commands import TimerRow
from dledger_broker.features.delay.records import Real, real_of
from dledger_remoting.errors import RecordError
from dledger_remoting.record import MessageRecord, decode_record

Readable: TypeAlias = tuple[TimerRow, tuple[MessageRecord, Real] | None]
"""Row with its record and the destination of its message; None if the record cannot be read now."""


class RecordReads:
    """Reader of records on one node."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def read(self, rows: Sequence[TimerRow], done: Callable[[Sequence[Readable]], None]) -> None:
        """Read the records of some rows. `done` is called at once if all records are in memory."""
        found: list[bytes | None] = []
        for _, position, size in rows:
            try:
                data = self._log.read_nowait(position, size)
            except LogError:
                data = None
            found.append(data)
        if None not in found:
            done([(row, _record(data, row)) for row, data in zip(rows, found, strict=True)])
            return
        task = asyncio.get_running_loop().create_task(self._read_later(rows, found, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_later(
        self, rows: Sequence[TimerRow], found: Sequence[bytes | None], done: Callable[[Sequence[Readable]], None]
    ) -> None:
        records: list[Readable] = []
        for row, data in zip(rows, found, strict=True):
            if data is None:
                try:
                    data = await self._log.read(row[1], row[2])
                except (LogError, OSError):
                    data = None
            records.append((row, _record(data, row)))
        done(records)

    def close(self) -> None:
        """Cancel all reads."""
        for task in self._tasks:
            task.cancel()


def _record(data: bytes | None, row: TimerRow) -> tuple[MessageRecord, Real] | None:
    if data is None:
        return None
    try:
        record = decode_record(data, verify_crc=True)
    except RecordError:
        return None
    real = real_of(record)
    if real is None or (real.due_ms, record.physical_offset) != row[:2]:
        return None
    return record, real
