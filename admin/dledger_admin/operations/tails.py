"""Tails of topics: the newest messages that match a filter, again and again, without a consumer group."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from dledger_client import Filter, PullConsumer, ReceivedMessage, Sql

from .access import Access
from .errors import OperationError
from .positions import FromEnd, find
from .reading import MAX_QUEUES

_PAGE_MESSAGES: Final = 64
_WAIT_SECONDS: Final = 0.3
"""Time for which a look waits for a first message."""
_MAX_PAGES: Final = 32
"""Maximum number of pages that one look reads. A busy topic is followed with gaps in time, and none in order."""


class Tail:
    """The newest messages of a topic, as far as `look` has read them."""

    def __init__(self, reader: PullConsumer, limit: int) -> None:
        self._reader = reader
        self._messages: deque[ReceivedMessage] = deque(maxlen=limit)

    async def look(self) -> list[ReceivedMessage]:
        """Read what is new, and return the newest messages that match, the newest first."""
        for _ in range(_MAX_PAGES):
            page = await self._reader.poll(_PAGE_MESSAGES, timeout=_WAIT_SECONDS)
            if not page:
                break
            self._messages.extend(sorted(page, key=lambda message: (message.stored_timestamp_ms, message.queue_offset)))
        return list(reversed(self._messages))


@asynccontextmanager
async def tail(access: Access, topic: str, *, tag: str = "", sql: str = "", limit: int) -> AsyncGenerator[Tail, None]:
    """Follow a topic from its last `limit` messages in each queue on.

    A `tag` (`a || b`), or an expression in SQL92, chooses messages; brokers apply both. Raises `OperationError` for a
    topic with too many queues, or for both filters, and `NoRouteError` for an unknown topic.
    """
    if tag and sql:
        raise OperationError("a tag and an expression are given: name one of them, such as TAGS = 'a' AND amount > 1")
    chosen: Filter = Sql(sql) if sql else tag or "*"
    async with access.reader(chosen) as reader:
        queues = await reader.queues(topic)
        if len(queues) > MAX_QUEUES:
            raise OperationError(f"topic {topic} has {len(queues)} queues, at most {MAX_QUEUES} are followed")
        await reader.assign(queues)
        for queue, offset in (await find(reader, FromEnd(limit))).items():
            reader.seek(queue, offset)
        yield Tail(reader, limit)
