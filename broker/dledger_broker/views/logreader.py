"""Reads of single records and of pieces of the log, by position."""

from __future__ import annotations

from typing import Protocol

from dledger.errors import NotLeaderError
from dledger.format import HEADER_BYTES
from dledger.log import Log
from dledger_remoting.errors import RecordError
from dledger_remoting.record import MAGIC_V1, MAGIC_V2, SYS_BORN_HOST_V6, MessageRecord, decode_record

MIN_RECORD_BYTES = 91
_HEAD_BYTES = 76
"""As much of a record as holds its store timestamp, whatever its hosts."""


class AppliedLog(Protocol):
    """The log of a replica, and how much of it is applied."""

    @property
    def log(self) -> Log:
        """The log; there from the replica's start on."""

    @property
    def applied_position(self) -> int:
        """Behind the last entry that is applied."""


class LogReader:
    """Committed and applied bytes only: nothing at or above the applied position is read."""

    def __init__(self, replica: AppliedLog) -> None:
        self._replica = replica

    async def read(self, position: int, size: int) -> bytes:
        """`size` bytes at `position`; raises `TrimmedError` below the first kept position."""
        data = self._replica.log.read_nowait(position, size)
        return await self._replica.log.read(position, size) if data is None else data

    async def store_timestamp(self, position: int) -> int:
        """The store time, ms, of the record at a position where one is known to be."""
        head = await self.read(position, _HEAD_BYTES)
        begin = 68 if int.from_bytes(head[36:40], "big") & SYS_BORN_HOST_V6 else 56
        return int.from_bytes(head[begin : begin + 8], "big")

    async def record(self, position: int) -> tuple[bytes, MessageRecord] | None:
        """What looks like a record at any position, or None.

        The bytes may be part of a message's body that imitates a record: compare with the consume queue.
        """
        if not self._replica.log.first_position <= position <= self._replica.applied_position - MIN_RECORD_BYTES:
            return None
        head = await self.read(position, 8)
        size, magic = int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")
        if magic not in {MAGIC_V1, MAGIC_V2} or not MIN_RECORD_BYTES <= size <= self._segment_end(position) - position:
            return None
        data = await self.read(position, size)
        try:
            record = decode_record(data, verify_crc=True)
        except RecordError:
            return None
        return (data, record) if record.physical_offset == position else None

    async def block(self, position: int, limit: int) -> tuple[int, bytes]:
        """A piece of the log that starts with the entry at or after `position`: where it starts, and the bytes.

        It holds at least one whole entry or blank and, if that is not larger, at most `limit` bytes.  `position` is the
        start or the end of an entry below the applied end.  Raises `NotLeaderError` while a snapshot replaces the log:
        other nodes are to be asked.
        """
        position = max(position, self._replica.log.first_position)
        end = min(self._segment_end(position), self._replica.applied_position)
        if end <= position:
            later = [one.start_position for one in self._replica.log.segments() if one.start_position > position]
            if not later:
                # A snapshot is being installed: the log is empty already, the state is not yet the snapshot's.
                raise NotLeaderError(None, 0, "the log of this node is being replaced")
            position = min(later)
            end = min(self._segment_end(position), self._replica.applied_position)
        data = await self.read(position, min(limit, end - position))
        size = int.from_bytes(data[4:8], "big")
        if HEADER_BYTES <= size <= end - position and size > len(data):
            data = await self.read(position, size)
        return position, data

    def _segment_end(self, position: int) -> int:
        for segment in reversed(self._replica.log.segments()):
            if segment.start_position <= position:
                return segment.end_position
        return position
