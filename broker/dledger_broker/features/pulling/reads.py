"""Reads of queues: which stored bytes a pull gets, from memory and page cache at once, or later from disk."""

from __future__ import annotations

from collections.abc import Callable

from dledger.errors import CorruptionError, NotLeaderError
from dledger_broker.errors import BeingMendedError
from dledger_broker.features.pulling.properties import MAX_EXAMINED_BYTES, max_examined
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.proof import are_records_of, may_follow
from dledger_broker.views.reading import GetResult, ReadStatus, outside, select, units_to_read
from dledger_broker.views.units import UNIT_BYTES
from dledger_remoting.filters.classes import ClassFilter
from dledger_remoting.filters.sql92 import SqlFilter
from dledger_remoting.filters.subscriptions import MessageFilter


class QueueReads:
    """Finds messages of queues; what they lie at is read from the log by whoever asks."""

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
        """What a pull at `offset` gets from memory and page cache: at least one matching record if there is one.

        A filter in SQL92 or by class looks at records, which are not read here: all that it is to examine is given.
        A result that is `cold` was not read: ask `get_messages_later`.  May raise `StorageError`, and what
        `QueueMending.notice` returns.
        """
        max_messages = max(max_messages, 1)
        nothing = outside(offset, queue.min_offset, queue.max_offset, queue.view.end)
        if nothing is not None:
            return nothing
        from_files = offset < queue.view.tail_start
        units = self._machine.queues.read(queue.view, offset, _units_to_read(max_messages, message_filter))
        if units is None:
            return GetResult(ReadStatus.COLD, offset, queue.min_offset, queue.max_offset, [])
        return self._select(queue, offset, max_messages, max_bytes, message_filter, units, from_files=from_files)

    def get_messages_later(
        self,
        queue: QueueState,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        done: Callable[[GetResult | BaseException], None],
    ) -> None:
        """As `get_messages`, reading units on a worker; `done` may get `BusyError` or `OSError`, and what
        `QueueMending.notice` returns.
        """
        max_messages = max(max_messages, 1)
        nothing = outside(offset, queue.min_offset, queue.max_offset, queue.view.end)
        if nothing is not None:
            done(nothing)
            return

        from_files = offset < queue.view.tail_start

        def selected(units: bytes | BaseException) -> None:
            if queue.dropped:
                # What was read may be of another topic, which has got the name of this queue's.
                done(GetResult(ReadStatus.MESSAGE_WAS_REMOVING, offset, offset, offset, []))
            elif isinstance(units, BaseException):
                # A trim may have come meanwhile, after which the files of what it took are removed.
                error = units
                nothing = outside(offset, queue.min_offset, queue.max_offset, queue.view.end)
                if nothing is None and isinstance(units, CorruptionError):
                    error = self._machine.mending.notice(queue.topic, queue.queue_id, offset, offset + 1)
                done(nothing or error)
            else:
                try:
                    result = self._select(
                        queue, offset, max_messages, max_bytes, message_filter, units, from_files=from_files
                    )
                except (NotLeaderError, BeingMendedError) as error:
                    done(error)
                else:
                    done(result)

        self._machine.queues.read_later(queue.view, offset, _units_to_read(max_messages, message_filter), selected)

    def _select(
        self,
        queue: QueueState,
        offset: int,
        max_messages: int,
        max_bytes: int,
        message_filter: MessageFilter | None,
        units: bytes,
        *,
        from_files: bool,
    ) -> GetResult:
        first_position = self._machine.log.first_position
        low, high = queue.min_offset, queue.max_offset
        tag_filter = None
        if isinstance(message_filter, SqlFilter | ClassFilter):
            max_messages, max_bytes = max_examined(message_filter), MAX_EXAMINED_BYTES
        else:
            tag_filter = message_filter
        result = select(units, offset, low, high, max_messages, max_bytes, tag_filter, first_position)
        if not from_files:
            return result
        passed = result.next_begin - offset
        if result.message_count < passed and not self._may_follow(units[: passed * UNIT_BYTES]):
            raise self._machine.mending.notice(queue.topic, queue.queue_id, offset, result.next_begin)
        return result._replace(from_files=True)

    def _may_follow(self, units: bytes) -> bool:
        """Whether units of which some are passed over, unread, may be right.

        What a trim has taken lies below the offsets that it gave its queues: no unit above these names anything there.
        """
        log, decided = self._machine.log, self._machine.state.trims.before
        first_position = log.first_position if log.first_position <= decided else 0
        return may_follow(units, first_position, self._machine.applied_position)

    def pieces_nowait(self, result: GetResult, topic: str, queue_id: int, asked: int) -> list[bytes] | None:
        """The bytes of what was found in a queue at offset `asked`, None if reading them would block.

        Raises `TrimmedError`, and what `QueueMending.notice` returns.
        """
        self._require_readable(result, topic, queue_id, asked)
        pieces: list[bytes] = []
        log = self._machine.log
        for position, size in result.runs:
            data = log.read_nowait(position, size)
            if data is None:
                return None
            pieces.append(data)
        self._require_proof(result, pieces, topic, queue_id, asked)
        return pieces

    async def pieces(self, result: GetResult, topic: str, queue_id: int, asked: int) -> list[bytes]:
        """As `pieces_nowait`, read on a worker; may raise what `Log.read` does."""
        self._require_readable(result, topic, queue_id, asked)
        pieces = [await self._machine.log.read(position, size) for position, size in result.runs]
        self._require_proof(result, pieces, topic, queue_id, asked)
        return pieces

    def _require_readable(self, result: GetResult, topic: str, queue_id: int, asked: int) -> None:
        if result.from_files and not self._machine.log_reader.may_be_read(result.runs):
            raise self._machine.mending.notice(topic, queue_id, asked, result.next_begin)

    def _require_proof(self, result: GetResult, pieces: list[bytes], topic: str, queue_id: int, asked: int) -> None:
        """Units in memory cannot rot: what they name needs no proof."""
        if result.from_files and not are_records_of(
            result.runs, pieces, topic, queue_id, asked, result.next_begin, result.message_count
        ):
            raise self._machine.mending.notice(topic, queue_id, asked, result.next_begin)


def _units_to_read(max_messages: int, message_filter: MessageFilter | None) -> int:
    if isinstance(message_filter, SqlFilter | ClassFilter):
        return max_examined(message_filter)
    return units_to_read(max_messages, message_filter)
