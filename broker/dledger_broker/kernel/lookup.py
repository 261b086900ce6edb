"""Lookup of single messages by position and by time. Each may wait for the disk."""

from __future__ import annotations

from dledger.environment import called_back
from dledger.errors import CorruptionError, NotLeaderError, TrimmedError
from dledger_broker.kernel.leadership import Replica
from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.consumequeue import ConsumeQueues, DamagedViewError
from dledger_broker.views.logreader import LogReader, OtherRecordError, RecordPlace
from dledger_broker.views.units import READ_UNIT, require_in_log
from dledger_remoting.record import MessageRecord
from dledger_remoting.topics import is_broker_written


class Lookup:
    """Lookup in the applied state of this replica.

    Any call may raise `BusyError`, `CorruptionError` or `StorageError`. It raises `NotLeaderError` while files of a
    queue that it needs are being rebuilt; the caller then tries other nodes.
    """

    def __init__(self, replica: Replica, queues: ConsumeQueues, reader: LogReader) -> None:
        self._replica = replica
        self._queues = queues
        self._reader = reader

    async def message_at(self, position: int) -> bytes | None:
        """Return the message that starts at a physical offset, as clients may see it, or None.

        Its consume queue must name it, so that a body that imitates a record is not mistaken for a message. A message
        that is not due or not committed yet lies in a topic that only the broker reads. It does not count as a message.
        """
        found = await self.record_at(position)
        if found is None:
            return None
        data, record = found
        return data if not is_broker_written(record.topic) and await self.is_listed(record) else None

    async def record_at(self, position: int) -> tuple[bytes, MessageRecord] | None:
        """Return the possible record at a physical offset, or None. Use `is_listed` to check whether it is a record."""
        try:
            return await self._reader.record(position)
        except TrimmedError:
            return None

    async def is_listed(self, record: MessageRecord) -> bool:
        """Return whether the record's consume queue names it at its place."""
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
        """Return the first offset whose message was stored at or after a time: the maximum if all were stored before, 0
        for an empty queue.

        If all messages here were stored later, and other nodes keep earlier ones, return the first offset of the group.
        A reader must not skip what this node lacks. With `upper`, return the last offset whose message was stored at or
        before the time, 0 if none was.
        """
        wanted = timestamp_ms + 1 if upper else timestamp_ms
        while (start := queue.min_offset) < (end := queue.max_offset):
            try:
                low = await self._first_stored_at(queue, start, end, wanted)
            except (TrimmedError, CorruptionError):
                if not _is_gone(queue, start):
                    raise
                continue  # a trim took the beginning meanwhile: search the kept part
            if upper:
                return low - 1 if low > start else 0
            return low if low > start else queue.first_offset
        return 0 if upper or queue.first_offset == queue.max_offset else queue.first_offset

    async def earliest_store_time(self, queue: QueueState) -> int:
        """Return the store time, ms, of the first kept message of a queue, -1 if it is empty."""
        while (first := queue.min_offset) < queue.max_offset:
            try:
                return await self._stored_at(queue, first)
            except (TrimmedError, CorruptionError):
                if not _is_gone(queue, first):
                    raise
        return -1

    async def latest_store_time(self, queue: QueueState) -> int:
        """Return the store time, ms, of the newest message of a queue, -1 if it is empty."""
        return await self.store_time_at(queue, queue.max_offset - 1)

    async def store_time_at(self, queue: QueueState, offset: int) -> int:
        """Return the store time, ms, of the message at an offset, -1 if the queue has no message there."""
        if not queue.min_offset <= offset < queue.max_offset:
            return -1
        try:
            return await self._stored_at(queue, offset)
        except (TrimmedError, CorruptionError):
            if not _is_gone(queue, offset):
                raise
            return -1

    async def units(self, queue: QueueState, offset: int, count: int) -> list[tuple[int, int, int]]:
        """Return up to `count` units of a queue from an offset on: positions, sizes and tag codes of records."""
        found: list[tuple[int, int, int]] = []
        while len(found) < count and queue.min_offset <= offset < queue.max_offset:
            units = await self._units(queue, offset, count - len(found))
            found += READ_UNIT.iter_unpack(units)
            offset += len(units) // READ_UNIT.size
        return found

    async def _first_stored_at(self, queue: QueueState, low: int, high: int, wanted_ms: int) -> int:
        """Return the first offset from `low` on whose message was stored at or after a time, `high` if none was."""
        while low < high:
            middle = (low + high) // 2
            if await self._stored_at(queue, middle) >= wanted_ms:
                high = middle
            else:
                low = middle + 1
        return low

    async def _stored_at(self, queue: QueueState, offset: int) -> int:
        position, size = await self._unit(queue, offset)
        try:
            return await self._reader.store_timestamp(RecordPlace(queue.queue_id, offset, position, size))
        except OtherRecordError as error:
            damage = DamagedViewError(queue.view, offset, str(error), contradicted=True)
            self._queues.found_damage(queue.view, offset, damage)
            raise damage from error

    async def _unit(self, queue: QueueState, offset: int) -> tuple[int, int]:
        position, size, _ = READ_UNIT.unpack(await self._units(queue, offset, 1))
        require_in_log([(position, size)], self._replica.applied_position)
        return position, size

    async def _units(self, queue: QueueState, offset: int, count: int) -> bytes:
        """Return up to `count` units, at least one. Units of a damaged queue are read once it is mended, unless that
        takes too long.
        """
        if offset < queue.view.tail_start and queue.view.damaged:
            await self._queues.wait_for_mending(queue.view)
        if queue.dropped and queue.next_offset >= 0:  # a deletion would have set it to -1
            raise NotLeaderError(None, 0, f"a snapshot has replaced what this node knew of {queue}")
        self._require_built(queue, offset)
        try:
            units = self._queues.read(queue.view, offset, count)
            if units is None:
                later: bytes = await called_back(lambda done: self._queues.read_later(queue.view, offset, count, done))
                units = later
        except CorruptionError:
            if not queue.view.damaged:
                raise
            return await self._units(queue, offset, count)
        return units

    @staticmethod
    def _require_built(queue: QueueState, offset: int) -> None:
        built = queue.view.readable_to(offset)
        if offset >= built and not _is_gone(queue, offset):
            raise NotLeaderError(None, 0, f"this node has not rebuilt the files of {queue} beyond {built} yet")


def _is_gone(queue: QueueState, offset: int) -> bool:
    """Return whether a trim has taken an offset, or a deletion the queue. Its files may have gone while they were
    read.
    """
    return queue.dropped or offset < queue.min_offset
