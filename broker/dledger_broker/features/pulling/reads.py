"""Reads of queues: finds the stored bytes for a pull, from memory and page cache at once, or later from disk.

Pulls do not read bodies. A reader that finds a wrong CRC reads the record from another node, and reports it to this
node by a pull with `verify`. The node checks for itself, so a false claim costs only the reading of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from dledger.errors import CorruptionError, TrimmedError
from dledger.log import Log
from dledger_broker.features.pulling.properties import MAX_EXAMINED_BYTES, max_examined
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.reading import GetResult, ReadStatus, outside, select, units_to_read
from dledger_broker.views.units import require_in_log
from dledger_remoting.errors import ReadBehind, RecordError
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import ClassFilter, MessageFilter
from dledger_remoting.record import decode_record

_EXAMINE: Final = (SqlFilter, ClassFilter)
"""Filters that read records."""


class QueueReads:
    """Finder of messages in queues. It returns their places in the log, and the caller reads them there."""

    def __init__(self, machine: BrokerMachine) -> None:
        self._machine = machine

    def get_messages(
        self,
        queue: QueueState,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None = None,
    ) -> GetResult:
        """Return what a pull at `offset` gets from memory and page cache. If any record matches, the result has at
        least one record.

        Filters by SQL92 or by class need the records, which are not read here. For them, all records to examine are
        returned. A `cold` result was not read: call `get_messages_later`. May raise `CorruptionError` or
        `StorageError`.
        """
        if queue.dropped:  # The queue may be dropped while a worker reads or judges its messages.
            return _removed(offset)
        max_messages = max(max_messages, 1)
        low, high, view = queue.min_offset, queue.max_offset, queue.view
        nothing = outside(offset, low, high, view.readable_to(offset))
        if nothing is not None:
            return nothing
        try:
            units = self._machine.queues.read(view, offset, _units_to_read(max_messages, message_filter))
        except CorruptionError:
            nothing = outside(offset, low, high, view.readable_to(offset))
            if nothing is None:
                raise
            return nothing
        if units is None:
            return GetResult(ReadStatus.COLD, offset, low, high, [])
        return self._select(offset, low, high, max_messages, max_bytes, message_filter, units)

    def get_messages_later(
        self,
        queue: QueueState,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        done: Callable[[GetResult | BaseException], None],
    ) -> None:
        """Find messages as `get_messages` does, but read units on a worker. `done` may get an error.

        That error is `CorruptionError`, `BusyError` or `OSError`.
        """
        max_messages = max(max_messages, 1)
        if queue.dropped:  # The queue may be dropped while this read waits for its task.
            done(_removed(offset))
            return
        nothing = outside(offset, queue.min_offset, queue.max_offset, queue.view.readable_to(offset))
        if nothing is not None:
            done(nothing)
            return

        def selected(units: bytes | BaseException) -> None:
            if queue.dropped:
                # A new topic may have got the same name, and the units read may belong to that topic.
                done(_removed(offset))
            elif isinstance(units, BaseException):
                # The files are damaged, or a trim has removed them meanwhile.
                done(outside(offset, queue.min_offset, queue.max_offset, queue.view.readable_to(offset)) or units)
            else:
                low, high = queue.min_offset, queue.max_offset
                try:
                    found = self._select(offset, low, high, max_messages, max_bytes, message_filter, units)
                except CorruptionError as error:
                    done(error)
                else:
                    done(found)

        self._machine.queues.read_later(queue.view, offset, _units_to_read(max_messages, message_filter), selected)

    def _select(
        self,
        offset: int,
        low: int,
        high: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        units: bytes,
    ) -> GetResult:
        first_position = self._machine.log.first_position
        if isinstance(message_filter, _EXAMINE):
            max_messages, max_bytes, message_filter = max_examined(message_filter), MAX_EXAMINED_BYTES, None
        result = select(units, offset, low, high, max_messages, max_bytes, message_filter, first_position)
        require_in_log(result.runs, self._machine.applied_position)
        return result


def _removed(offset: int) -> GetResult:
    """Return the result for a queue that is gone, whose offsets mean nothing any more. The reader is to ask again."""
    return GetResult(ReadStatus.MESSAGE_WAS_REMOVING, offset, offset, offset, [])


def _units_to_read(max_messages: int, message_filter: MessageFilter | None) -> int:
    if message_filter is None:
        return max_messages
    if isinstance(message_filter, _EXAMINE):
        return max_examined(message_filter)
    return units_to_read(max_messages, message_filter)


async def verify_records(log: Log, runs: Iterable[tuple[int, int]]) -> None:
    """Check records in runs of a position and a size. Raises `ReadBehind` for a record that is damaged here."""
    for position, size in runs:
        try:
            data = await log.read(position, size)
        except TrimmedError:
            return  # The pull itself then answers which messages are kept.
        place = 0
        while place < len(data):
            try:
                decode_record(data, place, verify_crc=True)
            except RecordError as error:
                log.read_failed(position + place)
                raise ReadBehind(f"the record at position {position + place} is damaged here: {error}") from error
            place += int.from_bytes(data[place : place + 4], "big")
