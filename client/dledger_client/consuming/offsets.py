"""Stores of a consumer group's offsets: on the brokers, or in a file for broadcast consumption."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import RemotingError
from dledger_remoting.headers import (
    MaxOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.headers_consume import TOPIC_CREATED_FIELD

from ..cluster.core import ClientCore
from ..cluster.surroundings import workers
from ..errors import ClientError, InvalidArgumentError, refusal
from ..messages import MessageQueue

logger = logging.getLogger(__name__)

StartFrom: TypeAlias = Literal["first", "last"] | int
"""Start of a group without a committed offset: the first kept message, the next message, or a time.

A time, in ms since 1970, stands for the first message that was stored then or later.
"""


_NOT_COMMITTED_CODES: Final = frozenset({int(ResponseCode.QUERY_NOT_FOUND)})


def check_start(start: StartFrom) -> StartFrom:
    """Return the given start. Raises `InvalidArgumentError` if it is a time before 1970."""
    if isinstance(start, int) and start < 0:
        raise InvalidArgumentError(f"{start!r} is no place to start: a time in ms since 1970 is not below 0")
    return start


Creations: TypeAlias = dict[MessageQueue, int]
"""Creation of the topic to which a reader's offsets belong, by queue. Brokers report it with the offsets."""


class Position(NamedTuple):
    """An offset to commit, and the creation of the topic that it belongs to, None if no broker has reported it."""

    offset: int
    created: int | None


class QueueOffsets:
    """Asks the leader of a queue's broker group for offsets. Errors are those of `ClientCore.call_leader`.

    `creations` keeps the creation of the topic that brokers report with each offset. A commit names it.

    Commits of a queue, and questions for its committed offset, take turns. A commit that a busy broker or a change of
    leaders holds up would undo a later one. After a reset the broker accepts commits from a reader that has asked for
    the offset. So each earlier commit must have ended before the question.
    """

    def __init__(self, core: ClientCore, creations: Creations | None = None) -> None:
        self._core = core
        self._creations: Creations = {} if creations is None else creations
        self._commit_locks: dict[MessageQueue, asyncio.Lock] = {}

    def turn(self, queue: MessageQueue) -> asyncio.Lock:
        """Return the lock that is held during each commit of the queue, and each question for its committed offset."""
        return self._commit_locks.setdefault(queue, asyncio.Lock())

    async def first(self, queue: MessageQueue, deadline: float) -> int:
        """Return the offset of the first kept message."""
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._request_offset(queue, RequestCode.GET_MIN_OFFSET, encode_ext(header), deadline)

    async def end(self, queue: MessageQueue, deadline: float) -> int:
        """Return the offset that the next message will get."""
        header = MaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._request_offset(queue, RequestCode.GET_MAX_OFFSET, encode_ext(header), deadline)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int, deadline: float) -> int:
        """Return the offset of the first message stored at or after a time, the end without any."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._request_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, encode_ext(header), deadline)

    async def at(self, queue: MessageQueue, start: StartFrom, deadline: float) -> int:
        """Return the offset that a `StartFrom` means."""
        if start == "first":
            return await self.first(queue, deadline)
        if start == "last":
            return await self.end(queue, deadline)
        return await self.at_time(queue, start, deadline)

    async def committed(self, consumer_group: str, queue: MessageQueue, deadline: float) -> int | None:
        """Return the offset that a group has committed, None before its first commit."""
        header = QueryConsumerOffsetHeader(
            consumer_group=consumer_group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        group = self._core.routes.group(queue.broker_group)
        async with self.turn(queue):
            response = await self._core.call_leader(
                group,
                RequestCode.QUERY_CONSUMER_OFFSET,
                encode_ext(header),
                deadline=deadline,
                accept=_NOT_COMMITTED_CODES,
            )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            self._record_creation(queue, response.ext)
            return None
        return self._decode_offset(queue, response.ext)

    async def commit(
        self, consumer_group: str, queue: MessageQueue, offset: int, deadline: float, *, reset: bool | None = None
    ) -> None:
        """Commit an offset, even below the present one. With `reset` a popped queue continues there, too."""
        async with self.turn(queue):
            position = Position(offset, self._creations.get(queue))
            await self.commit_in_turn(consumer_group, queue, position, deadline, reset=reset)

    async def commit_in_turn(
        self,
        consumer_group: str,
        queue: MessageQueue,
        position: Position,
        deadline: float,
        *,
        reset: bool | None = None,
    ) -> None:
        """Commit a position, as `commit` does an offset. The caller holds the turn of the queue."""
        header = UpdateConsumerOffsetHeader(
            consumer_group=consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=position.offset,
            reset=reset,
            topic_created=position.created,
        )
        group = self._core.routes.group(queue.broker_group)
        await self._core.call_leader(
            group, RequestCode.UPDATE_CONSUMER_OFFSET, encode_ext(header), deadline=deadline, proves_leader=True
        )

    async def _request_offset(self, queue: MessageQueue, code: int, ext: Mapping[str, str], deadline: float) -> int:
        group = self._core.routes.group(queue.broker_group)
        response = await self._core.call_leader(group, code, ext, deadline=deadline)
        return self._decode_offset(queue, response.ext)

    def _decode_offset(self, queue: MessageQueue, ext: Mapping[str, str]) -> int:
        try:
            offset = decode_ext(OffsetResponseHeader, ext).offset
        except RemotingError as error:
            raise refusal(error) from error
        self._record_creation(queue, ext)
        return offset

    def _record_creation(self, queue: MessageQueue, ext: Mapping[str, str]) -> None:
        created = ext.get(TOPIC_CREATED_FIELD, "")
        if created.isascii() and created.isdecimal():
            self._creations[queue] = int(created)
        else:
            self._creations.pop(queue, None)


class OffsetStore(Protocol):
    """Store of a consumer group's progress in each queue.

    `creations` holds the creation of the topic to which a reader's offsets belong, as far as it is known.
    """

    creations: Creations

    async def load(self, queue: MessageQueue, deadline: float) -> int | None:
        """Return the stored offset, None if there is none. Raises `ClientError`."""
        ...

    async def save(self, positions: Mapping[MessageQueue, Position], deadline: float) -> set[MessageQueue]:
        """Store positions; return the queues for which that succeeded."""
        ...

    async def reset(self, queue: MessageQueue, offset: int, deadline: float) -> int:
        """Return where to continue after a reset of the group, which was announced as a reset to `offset`.

        Waits until no save of an earlier offset is under way. Raises `ClientError`.
        """
        ...

    async def wait_for_saves(self, queue: MessageQueue) -> None:
        """Wait until no save of a queue's offset is under way."""
        ...


class BrokerOffsetStore:
    """Store on the brokers, where every member of the group finds the offsets."""

    def __init__(self, core: ClientCore, consumer_group: str) -> None:
        self.creations: Creations = {}
        self._offsets = QueueOffsets(core, self.creations)
        self._consumer_group = consumer_group

    async def load(self, queue: MessageQueue, deadline: float) -> int | None:
        """Return the offset that the group has committed, None before its first commit. Raises `ClientError`."""
        return await self._offsets.committed(self._consumer_group, queue, deadline)

    async def save(self, positions: Mapping[MessageQueue, Position], deadline: float) -> set[MessageQueue]:
        """Commit the positions of all queues at the same time; return the queues for which that succeeded."""
        commits = [self._commit(queue, position, deadline) for queue, position in positions.items()]
        return {queue for queue in await asyncio.gather(*commits) if queue is not None}

    async def reset(self, queue: MessageQueue, offset: int, deadline: float) -> int:
        """Ask for the committed offset: a later reset may have moved it. The broker notes that this reader asked."""
        stored = await self.load(queue, deadline)
        return offset if stored is None else stored

    async def wait_for_saves(self, queue: MessageQueue) -> None:
        """Wait until no commit of a queue is under way."""
        async with self._offsets.turn(queue):
            pass

    async def _commit(self, queue: MessageQueue, position: Position, deadline: float) -> MessageQueue | None:
        try:
            async with self._offsets.turn(queue):
                await self._offsets.commit_in_turn(self._consumer_group, queue, position, deadline)
        except ClientError as error:
            logger.warning("offset %d of %s not committed: %s", position.offset, queue, error)
            return None
        return queue


class FileOffsetStore:
    """Store in a JSON file, `{"topic/broker group/queue id": offset}`, replaced as a whole and synced at every save.

    A further key, with `@created` at its end, has the creation of the topic to which the offset belongs. Earlier
    versions write no such key, and keep the keys that they find.

    Raises `InvalidArgumentError` if there is a file that cannot be read. A failure to write is logged, and the next
    save tries again.
    """

    def __init__(self, path: Path) -> None:
        self.creations: Creations = {}
        self._path = path
        self._write_lock = asyncio.Lock()
        self._threads = workers(1)
        self._offsets: dict[str, int] = {}
        if path.exists():
            try:
                self._offsets = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
            except (OSError, msgspec.DecodeError) as error:
                raise InvalidArgumentError(f"offset file {path} cannot be read: {error}") from error

    async def load(self, queue: MessageQueue, deadline: float) -> int | None:  # noqa: ARG002 (protocol)
        """Return the offset in the file, None if it has none."""
        offset, created = self._offsets.get(str(queue)), self._offsets.get(_created_key(queue))
        if offset is not None and created is not None:
            self.creations[queue] = created
        return offset

    async def save(self, positions: Mapping[MessageQueue, Position], deadline: float) -> set[MessageQueue]:  # noqa: ARG002
        """Write all offsets; return the queues, or none if the file cannot be written."""
        for queue, position in positions.items():
            self._offsets[str(queue)] = position.offset
            if position.created is None:
                self._offsets.pop(_created_key(queue), None)
            else:
                self._offsets[_created_key(queue)] = position.created
        async with self._write_lock:
            try:
                await self._threads.run(self._replace_file, msgspec.json.encode(self._offsets))
            except OSError as error:
                logger.warning("offset file %s not written: %s", self._path, error)
                return set()
        return set(positions)

    async def reset(self, queue: MessageQueue, offset: int, deadline: float) -> int:
        """Store the offset of the reset, and return it."""
        await self.save({queue: Position(offset, None)}, deadline)
        return offset

    async def wait_for_saves(self, queue: MessageQueue) -> None:  # noqa: ARG002 (protocol)
        """Wait until the file is not being written."""
        async with self._write_lock:
            pass

    def _replace_file(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(self._path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def _created_key(queue: MessageQueue) -> str:
    """Return the key of a queue's creation in an offset file. No topic and no broker group has an `@`."""
    return f"{queue}@created"
