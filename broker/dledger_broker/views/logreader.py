"""Reader of single records and of pieces of the log, by position."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple, Protocol

from dledger.errors import CorruptionError, NotLeaderError
from dledger.format import HEADER_BYTES
from dledger.log import Log
from dledger_remoting.errors import RecordError
from dledger_remoting.record import MAGIC_V1, MAGIC_V2, SYS_BORN_HOST_V6, MessageRecord, decode_record

MIN_RECORD_BYTES = 91
_PLACE = Struct(">i8xi4xqq")
PLACE_BYTES = _PLACE.size
_HEAD_BYTES = 76
"""Size in bytes of the part of a record that holds its store timestamp, whatever its hosts are."""


class OtherRecordError(CorruptionError):
    """The log has another record where a queue names one. The queue is wrong, or the log has rotted there."""


class UnreadableRecordError(CorruptionError):
    """The log cannot be read at `position`, where a worker looked for a record. The caller has the log repaired."""

    def __init__(self, position: int, reason: str) -> None:
        self.position = position
        super().__init__(reason)


class RecordPlace(NamedTuple):
    """The place of a record as a queue's unit names it."""

    queue_id: int
    queue_offset: int
    position: int
    size: int

    def require_in(self, head: bytes) -> None:
        """Raise `OtherRecordError` unless `head`, the first 36 bytes at the place, belongs to this record."""
        size, queue_id, queue_offset, position = _PLACE.unpack_from(head)
        found = RecordPlace(queue_id, queue_offset, position, size)
        if found != self:
            raise OtherRecordError(f"a queue names {self}, and the log has {found} there")


class AppliedLog(Protocol):
    """The log of a replica, and the position up to which it is applied."""

    @property
    def log(self) -> Log:
        """The log. It exists from the replica's start on."""

    @property
    def applied_position(self) -> int:
        """The position behind the last applied entry."""


class LogReader:
    """Reader of committed and applied bytes only: nothing at or above the applied position is read."""

    def __init__(self, replica: AppliedLog) -> None:
        self._replica = replica

    async def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes at `position`. Raises `TrimmedError` below the first kept position."""
        data = self._replica.log.read_nowait(position, size)
        return await self._replica.log.read(position, size) if data is None else data

    async def store_timestamp(self, place: RecordPlace) -> int:
        """Return the store time, ms, of a record. Raises `OtherRecordError` if the place holds another record, or no
        record.
        """
        head = await self.read(place.position, _HEAD_BYTES)
        place.require_in(head)
        begin = 68 if int.from_bytes(head[36:40], "big") & SYS_BORN_HOST_V6 else 56
        return int.from_bytes(head[begin : begin + 8], "big")

    async def record(self, position: int) -> tuple[bytes, MessageRecord] | None:
        """Return the possible record at any position, or None.

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
        """Return a piece of the log that starts with the entry at or after `position`, as (start, bytes).

        It holds at least one whole entry or blank, and at most `limit` bytes unless the first entry is larger.
        `position` is the start or the end of an entry below the applied end. Raises `NotLeaderError` while a snapshot
        replaces the log; the caller then tries other nodes.
        """
        position = max(position, self._replica.log.first_position)
        end = min(self._segment_end(position), self._replica.applied_position)
        if end <= position:
            later = [one.start_position for one in self._replica.log.segments() if one.start_position > position]
            if not later:
                # A snapshot is being installed: the log is already empty, and the state is not yet the snapshot's.
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
