"""Finder of the oldest message that a node's log holds.

The log is looked at from its first kept byte on, some pieces for each question, until there is a record. What was
found counts until the log is trimmed. Nobody who asks waits for the disk: a node whose disk stands still must tell how
it does all the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dledger.errors import LogError
from dledger.log import Log
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.views.keyindex import iter_block
from dledger_remoting.errors import RecordError
from dledger_remoting.record import scan_records

PIECE_BYTES: Final = 64 << 10
PIECES: Final = 16
"""So many are looked at for one question, as far as they are in memory."""
UNKNOWN: Final = -1


class EarliestMessage:
    """Knows the store time of the oldest message, once it has found it."""

    def __init__(self, machine: BrokerMachine, log: Log) -> None:
        self._machine = machine
        self._log = log
        self._position = 0
        """Nothing below it is a message, or kept."""
        self._time_ms: int | None = None
        """Of a message in the entry at `_position`."""
        self._reading: asyncio.Task[None] | None = None

    def time_ms(self) -> int:
        """Store time, ms since 1970; `UNKNOWN` if there is no message, or none was found yet."""
        if self._position < self._log.first_position:
            self._position, self._time_ms = self._log.first_position, None
        for _ in range(PIECES):
            if self._time_ms is not None or self._reading is not None:
                break
            if self._position >= self._machine.applied_position or not self._look():
                break
        return UNKNOWN if self._time_ms is None else self._time_ms

    def close(self) -> None:
        """Read nothing any more."""
        if self._reading is not None:
            self._reading.cancel()

    def _look(self) -> bool:
        """Look at one more piece: at once if it is in memory, in a task if it has to be read; False if that failed."""
        position = self._position
        end = next((one.end_position for one in self._log.segments() if one.end_position > position), position)
        size = min(PIECE_BYTES, end - position, self._machine.applied_position - position)
        try:
            data = self._log.read_nowait(position, size)
            if data is not None and self._take(position, data):
                return True
        except (LogError, RecordError):
            return False  # trimmed meanwhile, or rotten: the next question looks again
        self._reading = asyncio.get_running_loop().create_task(self._read(position))
        return True

    async def _read(self, position: int) -> None:
        """Read a piece that begins with a whole entry, however large that is."""
        try:
            self._take(*await self._machine.log_reader.block(position, PIECE_BYTES))
        except (LogError, RecordError):
            pass  # as above
        finally:
            self._reading = None

    def _take(self, position: int, data: bytes) -> bool:
        """Look for a record in a piece of the log; False if not even its first entry is whole."""
        if position < self._position:
            return True  # the log was trimmed while it was read
        self._position = position
        for start, end, after in iter_block(data, position):
            if end > start:
                self._time_ms = next(scan_records(data, start, end)).store_timestamp
                return True
            self._position = after
        return self._position > position
