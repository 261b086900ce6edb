"""Messages that a consumer has to hand out: which queue's comes next, and who waits for one.

Queues take turns. For a consumer with priorities the queues of the highest come first, and those below wait until it is
drained, that is until every queue of it has nothing buffered and its broker has said that it ends there. A queue that
cannot be read, is paused, or has so much in work that it is not read on, holds up nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from .assignments import Assignments
from .callbacks import check_priority
from .fetcher import QueueFetcher
from .messages import MessageQueue, ReceivedMessage
from .tracing import Tracer

Priority: TypeAlias = Callable[[MessageQueue], int]
"""The priority of a queue's messages: higher ones come first."""


def priority_of(priority: bool | Priority) -> Priority | None:
    """What decides, None if queues take turns; True stands for the queue id.

    Raises `InvalidArgumentError` for a function of another form.
    """
    if isinstance(priority, bool):
        return queue_id_of if priority else None
    return check_priority(priority)


def queue_id_of(queue: MessageQueue) -> int:
    """The priority of a queue for a consumer with `priority=True`."""
    return queue.queue_id


class Offers:
    """The queues of one consumer that have something to hand out. With `orderly`, one message of a queue at a time."""

    def __init__(
        self,
        assignments: Assignments,
        consumer_group: str,
        *,
        orderly: bool,
        priority: Priority | None,
        tracer: Tracer | None,
    ) -> None:
        self._assignments = assignments
        self._consumer_group = consumer_group
        self._tracer = tracer
        self._orderly = orderly
        self._priority = priority
        self._listed: dict[int, deque[QueueFetcher]] = {}
        """By priority."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """How many queues have something to hand out; one that was given up meanwhile has nothing."""
        return sum(self._may_hand_out(fetcher) for listed in self._listed.values() for fetcher in listed)

    def add(self, fetcher: QueueFetcher) -> None:
        """A queue may have messages to hand out, or is known to have none; an orderly one with a message in work has
        none.
        """
        is_held_up = self._orderly and (fetcher.in_work or fetcher.retrying)
        if fetcher.buffer and not (fetcher.listed or is_held_up or fetcher.revoked or fetcher.paused):
            fetcher.listed = True
            self._listed.setdefault(self._priority_of(fetcher), deque()).append(fetcher)
        if self._priority is not None:
            self._wake(len(self._waiters))
        else:
            self._wake(1 if self._orderly else len(fetcher.buffer))

    def take(self) -> ReceivedMessage | None:
        """The next message, None if there is none, or a queue of a higher priority may still bring one."""
        floor = self._floor()
        for priority in sorted(self._listed, reverse=True):
            if priority < floor:
                return None
            listed = self._listed[priority]
            while listed:
                fetcher = listed.popleft()
                if not self._may_hand_out(fetcher):
                    fetcher.listed = False
                    continue
                message = fetcher.take()
                fetcher.listed = bool(fetcher.buffer) and not self._orderly
                if fetcher.listed:
                    listed.append(fetcher)
                return message if self._tracer is None else self._tracer.delivered(message, self._consumer_group)
            del self._listed[priority]
        return None

    async def next(self) -> ReceivedMessage | None:
        """The next message, as soon as there is one; None once this is closed."""
        while not self._closed:
            message = self.take()
            if message is not None:
                return message
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                elif len(self):
                    self._wake(1)
                raise
        return None

    def close(self) -> None:
        """Hand out nothing more; who waits gets nothing."""
        self._closed = True
        self._wake(len(self._waiters))

    def _may_hand_out(self, fetcher: QueueFetcher) -> bool:
        is_going_on = fetcher.buffer and not (fetcher.revoked or fetcher.paused)
        return bool(is_going_on) and self._assignments.may_work_on(fetcher)

    def _floor(self) -> float:
        """No message of a lower priority is handed out: a queue of this one may have more."""
        if self._priority is None:
            return -math.inf
        unsure = (self._priority_of(one) for one in self._assignments.fetchers() if one.may_have_more)
        return max(unsure, default=-math.inf)

    def _priority_of(self, fetcher: QueueFetcher) -> int:
        return 0 if self._priority is None else self._priority(fetcher.queue)

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
