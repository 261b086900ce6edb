"""Lookup of single messages by position and by time.  Each may wait for the disk."""

from __future__ import annotations

from dledger.environment import called_back
from dledger.errors import CorruptionError, NotLeaderError, TrimmedError
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.replica import Replica
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.units import UNIT, require_in_log
from dledger_remoting.record import MessageRecord
from dledger_remoting.topics import is_broker_written


class Lookup:
    """Answers from what is applied on this replica.

    Any call may raise `BusyError`, `CorruptionError` or `StorageError`, and `NotLeaderError` while what it needs of a
    queue's files is being rebuilt: other nodes are to be asked.
    """

    def __init__(self, replica: Replica, queues: ConsumeQueues, reader: LogReader) -> None:
        self._replica = replica
        self._queues = queues
        self._reader = reader

    async def message_at(self, position: int) -> bytes | None:
        """The message that starts at a physical offset, as clients may see it, or None.

        Its consume queue must name it: so a message's body that imitates a record is not mistaken for one.  What is not
        due or not committed, in a topic that the broker alone reads, is no message yet.
        """
        found = await self.record_at(position)
        if found is None:
            return None
        data, record = found
        return data if not is_broker_written(record.topic) and await self.is_listed(record) else None

    async def record_at(self, position: int) -> tuple[bytes, MessageRecord] | None:
        """What looks like a record at a physical offset, or None; whether it is one says `is_listed`."""
        try:
            return await self._reader.record(position)
        except TrimmedError:
            return None

    async def is_listed(self, record: MessageRecord) -> bool:
        """Whether the record's consume queue names it at its place."""
        topic = self._replica.state.topic_table.by_name.get(record.topic)
        queue = topic.queues.get(record.queue_id) if topic is not None else None
        if queue is None or not queue.min_offset <= record.queue_offset < queue.max_offset:
            return False
        try:
            return (await self._unit(queue, record.queue_offset))[0] == record.physical_offset
        except CorruptionError:
            if not _is_gone(queue, record.queue_offset):
                raise
            return False

    async def search_offset(self, queue: QueueState, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset whose message was stored at or after a time; the maximum if all were before, 0 for none.

        With `upper` the last offset whose message was stored at or before it; 0 if none was.
        """
        wanted = timestamp_ms + 1 if upper else timestamp_ms
        while (start := queue.min_offset) < (end := queue.max_offset):
            try:
                low = await self._first_stored_at(queue, start, end, wanted)
            except (TrimmedError, CorruptionError):
                if not _is_gone(queue, start):
                    raise
                continue  # look at what is left
            if upper:
                return low - 1 if low > start else 0
            return low
        return 0

    async def earliest_store_time(self, queue: QueueState) -> int:
        """Store time, ms, of the first kept message of a queue; -1 for none."""
        while (first := queue.min_offset) < queue.max_offset:
            try:
                return await self._stored_at(queue, first)
            except (TrimmedError, CorruptionError):
                if not _is_gone(queue, first):
                    raise
        return -1

    async def latest_store_time(self, queue: QueueState) -> int:
        """Store time, ms, of the newest message of a queue; -1 for none."""
        return await self.store_time_at(queue, queue.max_offset - 1)

    async def store_time_at(self, queue: QueueState, offset: int) -> int:
        """Store time, ms, of the message at an offset; -1 if the queue has none there, or none any more."""
        if not queue.min_offset <= offset < queue.max_offset:
            return -1
        try:
            return await self._stored_at(queue, offset)
        except (TrimmedError, CorruptionError):
            if not _is_gone(queue, offset):
                raise
            return -1

    async def units(self, queue: QueueState, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Up to `count` units of a queue from an offset on that it has: positions, sizes and tag codes of records."""
        found: list[tuple[int, int, int]] = []
        while len(found) < count and queue.min_offset <= offset < queue.max_offset:
            units = await self._units(queue, offset, count - len(found))
            found += UNIT.iter_unpack(units)
            offset += len(units) // UNIT.size
        return found

    async def _first_stored_at(self, queue: QueueState, low: int, high: int, wanted_ms: int) -> int:
        """The first of the offsets from `low` on whose message was stored at or after a time, `high` if none was."""
        while low < high:
            middle = (low + high) // 2
            if await self._stored_at(queue, middle) >= wanted_ms:
                high = middle
            else:
                low = middle + 1
        return low

    async def _stored_at(self, queue: QueueState, offset: int) -> int:
        position, _ = await self._unit(queue, offset)
        return await self._reader.store_timestamp(position)

    async def _unit(self, queue: QueueState, offset: int) -> tuple[int, int]:
        position, size, _ = UNIT.unpack(await self._units(queue, offset, 1))
        require_in_log(position, size, self._replica.applied_position)
        return position, size

    async def _units(self, queue: QueueState, offset: int, count: int) -> bytes:
        """Up to `count` units, at least one."""
        if queue.dropped and queue.next_offset >= 0:  # a deletion would have left it no offset
            raise NotLeaderError(None, 0, f"a snapshot has replaced what this node knew of {queue}")
        if offset >= queue.view.end:
            raise NotLeaderError(None, 0, f"this node has not rebuilt the files of {queue} beyond {queue.view.end} yet")
        units = self._queues.read(queue.view, offset, count)
        if units is None:
            later: bytes = await called_back(lambda done: self._queues.read_later(queue.view, offset, count, done))
            units = later
        return units


def _is_gone(queue: QueueState, offset: int) -> bool:
    """Whether a trim has taken an offset, or a deletion the queue: its files may have gone while they were read."""
    return queue.dropped or offset < queue.min_offset
