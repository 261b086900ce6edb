"""Lanes of a producer: requests with an ordering key go one at a time per queue, in the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from ..cluster.routes import TopicRoute, queue_of_key
from ..errors import ClientError, DeadlineError, InvalidArgumentError, SendError
from ..messages import MessageQueue
from .sender import QueueChoice, Sender

_KeyT = TypeVar("_KeyT", str, MessageQueue)


def refuse_two_choices(queue: MessageQueue | None, ordering_keys: Iterable[str | None]) -> None:
    """Raise `InvalidArgumentError` if a queue is given beside ordering keys, which pick the queue as well."""
    key = next((key for key in ordering_keys if key is not None), None)
    if queue is not None and key is not None:
        raise InvalidArgumentError(f"queue={tuple(queue)} and ordering_key={key!r} both pick the queue: give one")


class _Lane:
    """Calls that go one at a time; `users` are the one that goes and those that wait."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


@asynccontextmanager
async def _take_turn(
    lanes: dict[_KeyT, _Lane], key: _KeyT, topic: str, deadline: float, late_text: str
) -> AsyncIterator[None]:
    """Take a turn in a lane, which is there while calls use it. Raises `SendError` with the text `late_text`."""
    lane = lanes.setdefault(key, _Lane())
    lane.users += 1
    try:
        try:
            async with asyncio.timeout_at(deadline):
                await lane.lock.acquire()
        except TimeoutError:
            reason = DeadlineError(late_text)
            raise SendError(topic, 0, "not_sent", reason) from reason
        try:
            yield
        finally:
            lane.lock.release()
    finally:
        lane.users -= 1
        if not lane.users:
            del lanes[key]


class Lanes:
    """One lane for each queue to which ordering keys lead now."""

    def __init__(self) -> None:
        self._route_lanes: dict[str, _Lane] = {}
        self._queue_lanes: dict[MessageQueue, _Lane] = {}

    @asynccontextmanager
    async def turn(self, sender: Sender, topic: str, ordering_key: str, deadline: float) -> AsyncIterator[QueueChoice]:
        """Take a turn in the lane of a key. Yields the function that chooses the queue of its requests.

        A new caller does not overtake callers that are about to continue with a route that has just become known.
        Raises `SendError` if the turn does not come before `deadline`; nothing is sent then.
        """
        unknown_text = "its route was not known before the deadline"
        async with _take_turn(self._route_lanes, topic, topic, deadline, unknown_text):
            try:
                async with asyncio.timeout_at(deadline):
                    current_route = await sender.route(topic, deadline)
            except TimeoutError:
                reason = DeadlineError(unknown_text)
                raise SendError(topic, 0, "not_sent", reason) from reason
            except ClientError as error:
                raise SendError(topic, 0, "not_sent", error) from error
        queue = queue_of_key(current_route, ordering_key)

        def choose(route: TopicRoute) -> MessageQueue:
            return queue if route is current_route or queue in route.all_writable else queue_of_key(route, ordering_key)

        earlier_text = f"earlier messages to {queue} took until the deadline"
        async with _take_turn(self._queue_lanes, queue, topic, deadline, earlier_text):
            yield choose
