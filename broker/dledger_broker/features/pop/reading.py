"""Reads of popped queues: whole records, from memory and page cache at once, or later from disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Final, NamedTuple

from dledger.environment import called_back
from dledger.errors import CorruptionError, TrimmedError
from dledger.log import Log
from dledger_broker.features.class_filters.judging import ClassFilters, Verdicts
from dledger_broker.features.pulling.properties import choose
from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.kernel.earlier_logs import awaited_node, earlier_nodes
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import ClassFilter, MessageFilter
from dledger_remoting.record import RECORD_HEAD_BYTES

_OFFSET: Final = Struct(">20xq")
_SIZE: Final = Struct(">i")


class ReadPlan(NamedTuple):
    """Range of a queue to read."""

    queue: QueueState
    start: int
    max_messages: int
    max_bytes: int = 1 << 62
    message_filter: MessageFilter | None = None


class Read(NamedTuple):
    """Result of a read of a queue on a worker."""

    queue: QueueState
    offset: int
    result: GetResult
    pieces: list[bytes]
    verdicts: Verdicts | None = None


class ReadRecords(NamedTuple):
    """Records of a read, and the offset behind the range read. Without progress, that is the start offset."""

    next_offset: int
    records: tuple[bytes, ...]


class PopReads:
    """Reader of popped queues on one node."""

    def __init__(self, machine: BrokerMachine, log: Log, classes: ClassFilters) -> None:
        self._reads = QueueReads(machine)
        self._queues = machine.queues
        self._classes = classes
        self._log = log

    def read_now(self, plan: ReadPlan, read: Read | None = None) -> ReadRecords | None:
        """Return what can be read at once, or None if that needs the disk, a class filter or mending.

        `read` is an earlier read on a worker, used if it began at the same offset of the same queue. Raises
        `CorruptionError`, or `RecordError` if a filter had to read records.
        """
        queue, start, count, max_bytes, message_filter = plan
        if read is not None and read.queue is queue and read.offset == start:
            result, pieces, verdicts = read.result, read.pieces, read.verdicts
        else:
            verdicts = None
            result = self._reads.get_messages(queue, start, count, max_bytes, message_filter)
            new_pieces = None if result.cold or result.status is ReadStatus.NOT_REBUILT else self._pieces(result)
            if new_pieces is None or (new_pieces and isinstance(message_filter, ClassFilter)):
                return None
            pieces = new_pieces
        matcher = message_filter if isinstance(message_filter, SqlFilter) else verdicts
        if matcher is not None and result.status is ReadStatus.FOUND and pieces:
            result, pieces = choose(result, pieces, start, matcher, count, max_bytes)
        is_trimmed = result.status is ReadStatus.OFFSET_TOO_SMALL and not self._is_elsewhere(queue, start)
        if result.status is ReadStatus.NO_MATCHED_MESSAGE or is_trimmed:
            return ReadRecords(result.next_begin, ())
        records = split_records(pieces)
        if result.status is not ReadStatus.FOUND or not records:
            return ReadRecords(start, ())
        if len(records) > count:  # The read was made when there was room for more.
            records = records[:count]
            return ReadRecords(offset_of(records[-1]) + 1, records)
        return ReadRecords(result.next_begin, records)

    def _is_elsewhere(self, queue: QueueState, offset: int) -> bool:
        """Return whether another node keeps, or may keep, messages of the group that this leader's log lacks."""
        if offset < queue.first_offset:
            return False
        return bool(earlier_nodes(self._log)) or awaited_node(self._log) is not None

    def _pieces(self, result: GetResult) -> list[bytes] | None:
        """Return the pieces of the log, None if reading them would block, an empty result if the log has been trimmed
        since.
        """
        pieces: list[bytes] = []
        for position, size in result.runs:
            try:
                data = self._log.read_nowait(position, size)
            except TrimmedError:
                return []
            if data is None:
                return None
            pieces.append(data)
        return pieces

    async def read_later(self, plan: ReadPlan) -> Read:
        """Read on a worker what `read_now` could not. A damaged queue is read once it is mended.

        Raises the errors of `QueueReads.get_messages_later` and `Log.read`.
        """
        queue, start, _, _, message_filter = plan
        result = await self._read_units(plan)
        if result.status is ReadStatus.NOT_REBUILT and await self._queues.wait_for_mending(queue.view):
            result = await self._read_units(plan)
        pieces: list[bytes] = []
        try:
            for position, size in result.runs:
                pieces.append(await self._log.read(position, size))
        except TrimmedError:
            pieces = []
        verdicts = None
        if pieces and isinstance(message_filter, ClassFilter):
            verdicts = await self._classes.judge(message_filter, result.message_count, pieces)
        return Read(queue, start, result, pieces, verdicts)

    async def _read_units(self, plan: ReadPlan) -> GetResult:
        return await called_back(partial(self._reads.get_messages_later, *plan))


def offset_of(record: bytes) -> int:
    """Return the queue offset in a record."""
    offset: int = _OFFSET.unpack_from(record)[0]
    return offset


def split_records(pieces: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the records that lie back to back in pieces of the log. Raises `CorruptionError`."""
    records: list[bytes] = []
    for piece in pieces:
        start = 0
        while start < len(piece):
            bytes_left = len(piece) - start
            size = _SIZE.unpack_from(piece, start)[0] if bytes_left >= RECORD_HEAD_BYTES else bytes_left
            if not RECORD_HEAD_BYTES <= size <= bytes_left:
                raise CorruptionError(f"a record of {size} bytes, where {bytes_left} are left: it has rotted")
            records.append(piece[start : start + size])
            start += size
    return tuple(records)
