"""Finder of the oldest message in a node's log.

The log is searched from its first kept byte on, some pieces per request, until a record is found. The result holds
until the log is trimmed. No request waits for the disk: a node with a stalled disk must still report its condition.
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
"""Maximum number of pieces searched per request, as far as they are in memory."""
UNKNOWN: Final = -1


class EarliestMessage:
    """Finder that knows the store time of the oldest message once it has found the message."""

    def __init__(self, machine: BrokerMachine, log: Log) -> None:
        self._machine = machine
        self._log = log
        self._position = 0
        """Position below which no message is kept."""
        self._time_ms: int | None = None
        """Store time of a message in the entry at `_position`."""
        self._reading: asyncio.Task[None] | None = None

    def time_ms(self) -> int:
        """Return the store time in ms since 1970, or `UNKNOWN` if the log has no message or the search has not found
        one yet.
        """
        if self._position < self._log.first_position:
            self._position, self._time_ms = self._log.first_position, None
        for _ in range(PIECES):
            if self._time_ms is not None or self._reading is not None:
                break
            if self._position >= self._machine.applied_position or not self._search_piece():
                break
        return UNKNOWN if self._time_ms is None else self._time_ms

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    def _search_piece(self) -> bool:
        """Search one more piece, at once if it is in memory, else in a task. Return False if that failed."""
        position = self._position
        end = next(
            (segment.end_position for segment in self._log.segments() if segment.end_position > position), position
        )
        size = min(PIECE_BYTES, end - position, self._machine.applied_position - position)
        try:
            data = self._log.read_nowait(position, size)
            if data is not None and self._search_data(position, data):
                return True
        except (LogError, RecordError):
            return False  # The log was trimmed meanwhile, or is rotten. The next request searches again.
        self._reading = asyncio.get_running_loop().create_task(self._read(position))
        return True

    async def _read(self, position: int) -> None:
        """Read a piece that begins with a whole entry of any size."""
        try:
            self._search_data(*await self._machine.log_reader.block(position, PIECE_BYTES))
        except (LogError, RecordError):
            pass  # As in `_search_piece`.
        finally:
            self._reading = None

    def _search_data(self, position: int, data: bytes) -> bool:
        """Search a piece of the log for a record. Return False if not even the piece's first entry is whole."""
        if position < self._position:
            return True  # The log was trimmed during the read.
        self._position = position
        for start, end, after in iter_block(data, position):
            if end > start:
                self._time_ms = next(scan_records(data, start, end)).store_timestamp
                return True
            self._position = after
        return self._position > position
