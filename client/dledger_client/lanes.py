"""Lanes of a producer: what has an ordering key goes one request at a time per queue, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from .errors import ClientError, DeadlineError, SendError
from .messages import MessageQueue
from .routes import TopicRoute, queue_of_key
from .sender import QueueChoice, Sender


class Lanes:
    """One lane for each queue that ordering keys have led to."""

    def __init__(self) -> None:
        self._routing: dict[str, asyncio.Lock] = {}
        self._lanes: dict[MessageQueue, asyncio.Lock] = {}

    @asynccontextmanager
    async def turn(self, sender: Sender, topic: str, ordering_key: str, deadline: float) -> AsyncIterator[QueueChoice]:
        """A call's turn in the lane of its key, and what chooses the queue of its requests.

        Who comes while others are about to go on with a route that has just become known does not get ahead of them.
        Raises `SendError` if the turn does not come before `deadline`: nothing is sent then.
        """
        try:
            async with asyncio.timeout_at(deadline), self._routing.setdefault(topic, asyncio.Lock()):
                known = await sender.route(topic, deadline)
        except TimeoutError:
            unknown = DeadlineError("its route was not known before the deadline")
            raise SendError(topic, 0, "not_sent", unknown) from unknown
        except ClientError as error:
            raise SendError(topic, 0, "not_sent", error) from error
        queue = queue_of_key(known, ordering_key)

        def choose(route: TopicRoute) -> MessageQueue:
            return queue if route is known or queue in route.all_writable else queue_of_key(route, ordering_key)

        lane = self._lanes.setdefault(queue, asyncio.Lock())
        try:
            async with asyncio.timeout_at(deadline):
                await lane.acquire()
        except TimeoutError:
            reason = DeadlineError(f"earlier messages to {queue} took until the deadline")
            raise SendError(topic, 0, "not_sent", reason) from reason
        try:
            yield choose
        finally:
            lane.release()
