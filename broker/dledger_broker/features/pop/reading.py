"""Reads of popped queues: whole records one by one, from memory and page cache at once, or later from disk."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from dledger.environment import called_back
from dledger.errors import CorruptionError, TrimmedError
from dledger.log import Log
from dledger_broker.features.class_filters.judging import ClassFilters, Verdicts
from dledger_broker.features.pulling.properties import choose
from dledger_broker.features.pulling.reads import QueueReads
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.reading import GetResult, ReadStatus
from dledger_remoting.filters.classes import ClassFilter
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.record import RECORD_HEAD_BYTES

_OFFSET: Final = Struct(">20xq")
_SIZE: Final = Struct(">i")


class Wanted(NamedTuple):
    """What is to be read of a queue."""

    queue: QueueState
    start: int
    max_messages: int
    max_bytes: int = 1 << 62
    message_filter: MessageFilter | None = None


class Read(NamedTuple):
    """What was read of a queue on a worker."""

    queue: QueueState
    offset: int
    result: GetResult
    pieces: list[bytes]
    verdicts: Verdicts | None = None


class Found(NamedTuple):
    """The records that a read gave, and the offset behind what it looked at: where it began if there is nothing."""

    next_offset: int
    records: tuple[bytes, ...]


class PopReads:
    """Reads of one node."""

    def __init__(self, machine: BrokerMachine, log: Log, classes: ClassFilters) -> None:
        self._reads = QueueReads(machine)
        self._classes = classes
        self._log = log

    def now(self, wanted: Wanted, read: Read | None = None) -> Found | None:
        """What is there, None if that needs the disk or a class; `read` is what was read with them before.

        Raises `CorruptionError`, or `RecordError` if a filter had to look into records.
        """
        queue, start, count, max_bytes, message_filter = wanted
        if read is not None and read.queue is queue and read.offset == start:
            result, pieces, verdicts = read.result, read.pieces, read.verdicts
        else:
            verdicts = None
            result = self._reads.get_messages(queue, start, count, max_bytes, message_filter)
            found = None if result.cold else self._pieces(result)
            if found is None or (found and isinstance(message_filter, ClassFilter)):
                return None
            pieces = found
        matcher = message_filter if isinstance(message_filter, SqlFilter) else verdicts
        if matcher is not None and result.status is ReadStatus.FOUND and pieces:
            result, pieces = choose(result, pieces, start, matcher, count, max_bytes)
        if result.status is ReadStatus.NO_MATCHED_MESSAGE:
            return Found(result.next_begin, ())
        records = split_records(pieces)
        if result.status is not ReadStatus.FOUND or not records:
            return Found(start, ())
        if len(records) > count:  # read when there was room for more
            records = records[:count]
            return Found(offset_of(records[-1]) + 1, records)
        return Found(result.next_begin, records)

    def _pieces(self, result: GetResult) -> list[bytes] | None:
        """What was found, None if reading it would block; nothing if the log has been trimmed since."""
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

    async def later(self, wanted: Wanted) -> Read:
        """Read on a worker what `now` lacked. Raises as `QueueReads.get_messages_later` and `Log.read` do."""
        queue, start, count, max_bytes, message_filter = wanted
        result: GetResult = await called_back(
            lambda done: self._reads.get_messages_later(queue, start, count, max_bytes, message_filter, done)
        )
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


def runs_of(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending offsets as (first, count) of those that follow one another."""
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and sum(runs[-1]) == offset:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((offset, 1))
    return runs


def offset_of(record: bytes) -> int:
    """The queue offset in a record."""
    offset: int = _OFFSET.unpack_from(record)[0]
    return offset


def split_records(pieces: Sequence[bytes]) -> tuple[bytes, ...]:
    """The records that lie back to back in some pieces of the log. Raises `CorruptionError`."""
    records: list[bytes] = []
    for piece in pieces:
        at = 0
        while at < len(piece):
            left = len(piece) - at
            size = _SIZE.unpack_from(piece, at)[0] if left >= RECORD_HEAD_BYTES else left
            if not RECORD_HEAD_BYTES <= size <= left:
                raise CorruptionError(f"a record of {size} bytes, where {left} are left: it has rotted")
            records.append(piece[at : at + size])
            at += size
    return tuple(records)
