"""Lookup of single messages: by position, by time, by key.  Each may wait for the disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dledger.environment import called_back
from dledger.errors import CorruptionError, NotLeaderError, TrimmedError
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.views.consumequeue import ConsumeQueues
from dledger_broker.views.keysearch import KeySearch
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.units import UNIT
from dledger_remoting.properties import KEYS, UNIQUE_KEY, find_property
from dledger_remoting.record import MessageRecord

_KEYS: Final = KEYS.encode()
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


class QueryResult(NamedTuple):
    """Records with a key, newest first, and up to where messages were looked for."""

    records: list[bytes]
    last_update_timestamp: int
    last_update_position: int


class Queries:
    """Answers from what is applied on this replica.

    Any call may raise `BusyError`, `CorruptionError` or `StorageError`, and `NotLeaderError` while what it needs of a
    queue's files is being rebuilt: other nodes are to be asked.
    """

    def __init__(
        self, topics: Callable[[], TopicTable], queues: ConsumeQueues, reader: LogReader, keys: KeySearch
    ) -> None:
        self._topics = topics
        self._queues = queues
        self._reader = reader
        self._keys = keys

    async def message_at(self, position: int) -> bytes | None:
        """The record that starts at a physical offset, or None.

        Its consume queue must name it: so a message's body that imitates a record is not mistaken for one.
        """
        try:
            found = await self._reader.record(position)
        except TrimmedError:
            return None
        if found is None:
            return None
        data, record = found
        return data if await self._is_listed(record) else None

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

    async def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        max_bytes: int,
        unique_only: bool = False,
    ) -> QueryResult:
        """At most `max_count` messages of a topic with a key (a word of KEYS, or the unique key), newest first.

        Their records have at most `max_bytes` together, unless there is only one.  With `unique_only` the key is the
        unique key.  Whole seconds of the time range count.
        """
        wanted = key.encode()
        records: list[bytes] = []
        size = 0
        last_timestamp = last_position = 0
        for position in await self._keys.candidates(topic, wanted, max_count, begin_ms, end_ms):
            try:
                found = await self._reader.record(position)
            except TrimmedError:
                continue
            if found is None or found[1].topic != topic or not _has_key(found[1], wanted, unique_only=unique_only):
                continue
            if not await self._is_listed(found[1]):
                continue
            size += len(found[0])
            if records and size > max_bytes:
                break
            records.append(found[0])
            last_timestamp = max(last_timestamp, found[1].store_timestamp)
            last_position = max(last_position, position)
            if len(records) >= max_count:
                break
        return QueryResult(records, last_timestamp, last_position)

    async def _is_listed(self, record: MessageRecord) -> bool:
        topic = self._topics().by_name.get(record.topic)
        queue = topic.queues.get(record.queue_id) if topic is not None else None
        if queue is None or not queue.min_offset <= record.queue_offset < queue.max_offset:
            return False
        try:
            return (await self._unit(queue, record.queue_offset))[0] == record.physical_offset
        except CorruptionError:
            if not _is_gone(queue, record.queue_offset):
                raise
            return False

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
        if offset >= queue.view.end:
            raise NotLeaderError(None, 0, f"this node has not rebuilt the files of {queue} beyond {queue.view.end} yet")
        unit = self._queues.read(queue.view, offset, 1)
        if unit is None:
            later: bytes = await called_back(lambda done: self._queues.read_later(queue.view, offset, 1, done))
            unit = later
        position, size, _ = UNIT.unpack(unit)
        return position, size


def _is_gone(queue: QueueState, offset: int) -> bool:
    """Whether a trim has taken an offset, or a deletion the queue: its files may have gone while they were read."""
    return queue.dropped or offset < queue.min_offset


def _has_key(record: MessageRecord, key: bytes, *, unique_only: bool) -> bool:
    if find_property(record.properties, _UNIQUE_KEY) == key:
        return True
    words = find_property(record.properties, _KEYS) if not unique_only else None
    return words is not None and key in words.split(b" ")
