"""Stores of a consumer group's offsets: on the brokers, or in a file for broadcast consumption."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

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

from .core import ClientCore
from .errors import ClientError, InvalidArgumentError, refusal
from .messages import MessageQueue

logger = logging.getLogger(__name__)

StartFrom: TypeAlias = Literal["first", "last"] | int
"""Where a group without a committed offset begins: the first kept message, the next one to come, or the first one that
was stored at or after a time in ms since 1970."""


_NOT_COMMITTED: Final = frozenset({int(ResponseCode.QUERY_NOT_FOUND)})


def check_start(start: StartFrom) -> StartFrom:
    """What was given. Raises `InvalidArgumentError` if it is a time before 1970."""
    if isinstance(start, int) and start < 0:
        raise InvalidArgumentError(f"{start!r} is no place to start: a time in ms since 1970 is not below 0")
    return start


class QueueOffsets:
    """Asks the leader of a queue's broker group for offsets. Errors are those of `ClientCore.call_leader`."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core

    async def first(self, queue: MessageQueue, deadline: float) -> int:
        """The offset of the first kept message."""
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MIN_OFFSET, encode_ext(header), deadline)

    async def end(self, queue: MessageQueue, deadline: float) -> int:
        """The offset that the next message will get."""
        header = MaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._ask(queue, RequestCode.GET_MAX_OFFSET, encode_ext(header), deadline)

    async def at_time(self, queue: MessageQueue, timestamp_ms: int, deadline: float) -> int:
        """The offset of the first message stored at or after a time; the end if there is none."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, encode_ext(header), deadline)

    async def at(self, queue: MessageQueue, start: StartFrom, deadline: float) -> int:
        """The offset that a `StartFrom` stands for."""
        if start == "first":
            return await self.first(queue, deadline)
        if start == "last":
            return await self.end(queue, deadline)
        return await self.at_time(queue, start, deadline)

    async def committed(self, consumer_group: str, queue: MessageQueue, deadline: float) -> int | None:
        """The offset that a group has committed, None if it has not."""
        header = QueryConsumerOffsetHeader(
            consumer_group=consumer_group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        group = self._core.routes.group(queue.broker_group)
        response = await self._core.call_leader(
            group, RequestCode.QUERY_CONSUMER_OFFSET, encode_ext(header), deadline=deadline, accept=_NOT_COMMITTED
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(response.ext)

    async def commit(
        self, consumer_group: str, queue: MessageQueue, offset: int, deadline: float, *, reset: bool | None = None
    ) -> None:
        """Commit an offset, which may also be lower than the present one; `reset`: in a queue that is popped, too."""
        header = UpdateConsumerOffsetHeader(
            consumer_group=consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            reset=reset,
        )
        group = self._core.routes.group(queue.broker_group)
        await self._core.call_leader(
            group, RequestCode.UPDATE_CONSUMER_OFFSET, encode_ext(header), deadline=deadline, proves_leader=True
        )

    async def _ask(self, queue: MessageQueue, code: int, ext: Mapping[str, str], deadline: float) -> int:
        group = self._core.routes.group(queue.broker_group)
        response = await self._core.call_leader(group, code, ext, deadline=deadline)
        return _offset(response.ext)


class OffsetStore(Protocol):
    """Keeps how far a consumer group has come in each queue."""

    async def load(self, queue: MessageQueue, deadline: float) -> int | None:
        """The stored offset, None if there is none. Raises `ClientError`."""
        ...

    async def save(self, offsets: Mapping[MessageQueue, int], deadline: float) -> set[MessageQueue]:
        """Store offsets; the queues for which that succeeded."""
        ...

    async def reset(self, queue: MessageQueue, offset: int, deadline: float) -> int:
        """The group was reset, to an offset as far as is known: the one to go on at, once no save of an earlier one is
        under way. Raises `ClientError`.
        """
        ...


class BrokerOffsetStore:
    """Offsets on the brokers, where every member of the group finds them.

    A commit that a busy broker or a change of leaders holds up is waited for by the next one of its queue, which it
    would otherwise undo.
    """

    def __init__(self, core: ClientCore, consumer_group: str) -> None:
        self._offsets = QueueOffsets(core)
        self._consumer_group = consumer_group
        self._turns: dict[MessageQueue, asyncio.Lock] = {}

    async def load(self, queue: MessageQueue, deadline: float) -> int | None:
        """See `OffsetStore.load`."""
        return await self._offsets.committed(self._consumer_group, queue, deadline)

    async def save(self, offsets: Mapping[MessageQueue, int], deadline: float) -> set[MessageQueue]:
        """See `OffsetStore.save`: all queues at the same time."""
        commits = [self._commit(queue, offset, deadline) for queue, offset in offsets.items()]
        return {queue for queue in await asyncio.gather(*commits) if queue is not None}

    async def reset(self, queue: MessageQueue, offset: int, deadline: float) -> int:
        """See `OffsetStore.reset`: who asks shows that it knows of the reset, of which there may be a later one."""
        async with self._turns.setdefault(queue, asyncio.Lock()):
            stored = await self.load(queue, deadline)
        return offset if stored is None else stored

    async def _commit(self, queue: MessageQueue, offset: int, deadline: float) -> MessageQueue | None:
        try:
            async with self._turns.setdefault(queue, asyncio.Lock()):
                await self._offsets.commit(self._consumer_group, queue, offset, deadline)
        except ClientError as error:
            logger.warning("offset %d of %s not committed: %s", offset, queue, error)
            return None
        return queue


class FileOffsetStore:
    """Offsets in a JSON file, `{"topic/broker group/queue id": offset}`, replaced as a whole and synced at every save.

    Raises `InvalidArgumentError` if there is a file that cannot be read. What cannot be written is logged, and comes
    again with the next save.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = asyncio.Lock()
        self._offsets: dict[str, int] = {}
        if path.exists():
            try:
                self._offsets = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
            except (OSError, msgspec.DecodeError) as error:
                raise InvalidArgumentError(f"offset file {path} cannot be read: {error}") from error

    async def load(self, queue: MessageQueue, deadline: float) -> int | None:  # noqa: ARG002 (protocol)
        """See `OffsetStore.load`."""
        return self._offsets.get(str(queue))

    async def save(self, offsets: Mapping[MessageQueue, int], deadline: float) -> set[MessageQueue]:  # noqa: ARG002
        """See `OffsetStore.save`."""
        self._offsets.update((str(queue), offset) for queue, offset in offsets.items())
        async with self._writing:
            try:
                await asyncio.to_thread(self._replace, msgspec.json.encode(self._offsets))
            except OSError as error:
                logger.warning("offset file %s not written: %s", self._path, error)
                return set()
        return set(offsets)

    async def reset(self, queue: MessageQueue, offset: int, deadline: float) -> int:
        """See `OffsetStore.reset`."""
        await self.save({queue: offset}, deadline)
        return offset

    def _replace(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_name(self._path.name + ".tmp")
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)


def _offset(ext: Mapping[str, str]) -> int:
    try:
        return decode_ext(OffsetResponseHeader, ext).offset
    except RemotingError as error:
        raise refusal(error) from error
