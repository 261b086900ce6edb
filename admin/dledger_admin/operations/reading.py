"""Reading of messages between two places of some queues, without a consumer group."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Final

from dledger_client import MessageQueue, PullConsumer, ReceivedMessage

from .access import Access
from .errors import OperationError
from .positions import Edge, FromEnd, Position, find

MAX_QUEUES: Final = 256
"""Maximum number of queues that one call of `glance` reads. More would take seconds."""

_POLL_TIMEOUT_S: Final = 1.0


async def read(
    consumer: PullConsumer, queues: Iterable[MessageQueue], begin: Position, end: Position, page_messages: int
) -> AsyncGenerator[list[ReceivedMessage], None]:
    """Yield the messages between two places of the queues in pages, those of one queue in order."""
    await consumer.assign(queues)
    ends = await find(consumer, end)
    await _seek_to(consumer, await find(consumer, begin))
    async for page in _read_until(consumer, ends, page_messages):
        yield page


async def glance(
    access: Access, topic: str, begin: Position, count: int, *, broker_group: str = "", queue_id: int | None = None
) -> list[ReceivedMessage]:
    """Return the first `count` messages of a topic from a place on, in the order of their store times.

    From a place `FromEnd` on, the newest are returned. Only the queues of `broker_group` and with the number `queue_id`
    are read, where these are given. Raises `OperationError` if no queue is left, or more than `MAX_QUEUES`.
    """
    async with access.reader() as consumer:
        queues = [
            queue
            for queue in await consumer.queues(topic)
            if broker_group in ("", queue.broker_group) and queue_id in (None, queue.queue_id)
        ]
        if not queues:
            raise OperationError(f"topic {topic} has no such queue")
        if len(queues) > MAX_QUEUES:
            raise OperationError(f"topic {topic} has {len(queues)} queues, at most {MAX_QUEUES} are read: name one")
        await consumer.assign(queues)
        ends = await find(consumer, Edge.END)
        await _seek_to(consumer, await find(consumer, begin))
        ends = {queue: min(end, consumer.positions[queue] + count) for queue, end in ends.items()}
        found = [message async for page in _read_until(consumer, ends, count) for message in page]
    found.sort(key=lambda message: (message.stored_timestamp_ms, message.queue, message.queue_offset))
    return found[-count:] if isinstance(begin, FromEnd) else found[:count]


async def _seek_to(consumer: PullConsumer, begins: Mapping[MessageQueue, int]) -> None:
    """Move the consumer to these offsets, or to the first kept message above."""
    await consumer.seek_to_begin()
    first = consumer.positions
    for queue, offset in begins.items():
        consumer.seek(queue, max(offset, first[queue]))


async def _read_until(
    consumer: PullConsumer, ends: Mapping[MessageQueue, int], page_messages: int
) -> AsyncGenerator[list[ReceivedMessage], None]:
    """Yield the messages from the consumer's positions up to these offsets."""
    while unfinished := [queue for queue, position in consumer.positions.items() if position < ends[queue]]:
        await consumer.assign(unfinished)
        messages = await consumer.poll(page_messages, timeout=_POLL_TIMEOUT_S)
        page = [message for message in messages if message.queue_offset < ends[message.queue]]
        if page:
            yield page
