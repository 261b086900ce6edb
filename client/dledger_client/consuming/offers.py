"""Messages that a consumer has to hand out, the choice of the next queue, and the callers that wait for a message.

Queues take turns. For a consumer with priorities, queues of the highest priority come first. Lower ones wait until it
is drained: every queue of it has an empty buffer, and its broker has said that the queue ends there. A queue that
cannot be read, is paused, or has so much in work that reading has stopped, delays no other queue.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from operator import index
from typing import TypeAlias

from ..callbacks import check_priority
from ..messages import MessageQueue, ReceivedMessage
from ..sending.tracing import Tracer
from .assignments import Assignments
from .fetcher import QueueFetcher

logger = logging.getLogger(__name__)

Priority: TypeAlias = Callable[[MessageQueue], int]
"""Returns the priority of a queue's messages. Messages of higher priority come first."""


def priority_of(priority: bool | Priority) -> Priority | None:
    """Return the function that gives a queue's priority, None if queues take turns. True stands for the queue id.

    Raises `InvalidArgumentError` for a function of another form.
    """
    if isinstance(priority, bool):
        return queue_id_of if priority else None
    return check_priority(priority)


def queue_id_of(queue: MessageQueue) -> int:
    """Return the priority of a queue for a consumer with `priority=True`."""
    return queue.queue_id


class Offers:
    """Queues of one consumer that have messages to hand out.

    With `orderly`, one message of a queue is handed out at a time.
    """

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
        self._fetchers_by_priority: dict[int, deque[QueueFetcher]] = {}
        """Queues with messages, by priority."""
        self._last_priorities: dict[MessageQueue, int] = {}
        """Last results of the application's priority function."""
        self._failing_queues: set[MessageQueue] = set()
        """Queues for which the priority function raised the last time. Only the first failure in a row is logged."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of queues that have messages to hand out. A queue that has been given up has none."""
        return sum(
            self._may_hand_out(fetcher) for fetchers in self._fetchers_by_priority.values() for fetcher in fetchers
        )

    def add(self, fetcher: QueueFetcher) -> None:
        """Note that a queue may have messages to hand out, or is known to have none.

        With `orderly`, a queue with a message in work has none to hand out.
        """
        is_held_up = self._orderly and (fetcher.in_work or fetcher.retrying)
        if fetcher.buffer and not (fetcher.listed or is_held_up or fetcher.revoked or fetcher.paused):
            self._fetchers_by_priority.setdefault(self._priority_of(fetcher), deque()).append(fetcher)
            fetcher.listed = True
        if self._priority is not None:
            self._wake(len(self._waiters))
        else:
            self._wake(1 if self._orderly else len(fetcher.buffer))

    def take(self) -> ReceivedMessage | None:
        """Return the next message; None without any, or if a queue of higher priority may still have messages."""
        lowest_priority = self._find_lowest_priority()
        for priority in sorted(self._fetchers_by_priority, reverse=True):
            if priority < lowest_priority:
                return None
            fetchers = self._fetchers_by_priority[priority]
            while fetchers:
                fetcher = fetchers.popleft()
                if not self._may_hand_out(fetcher):
                    fetcher.listed = False
                    continue
                message = fetcher.take()
                fetcher.listed = bool(fetcher.buffer) and not self._orderly
                if fetcher.listed:
                    fetchers.append(fetcher)
                return message if self._tracer is None else self._tracer.delivered(message, self._consumer_group)
            del self._fetchers_by_priority[priority]
        return None

    async def next(self) -> ReceivedMessage | None:
        """Return the next message as soon as any arrives; None after `close`."""
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
        """Stop handing out messages; waiting callers get None."""
        self._closed = True
        self._wake(len(self._waiters))

    def _may_hand_out(self, fetcher: QueueFetcher) -> bool:
        has_messages = fetcher.buffer and not (fetcher.revoked or fetcher.paused)
        return bool(has_messages) and self._assignments.may_work_on(fetcher)

    def _find_lowest_priority(self) -> float:
        """Return the lowest priority that may be handed out: the highest of all queues that may still have messages."""
        if self._priority is None:
            return -math.inf
        priorities = (self._priority_of(fetcher) for fetcher in self._assignments.fetchers() if fetcher.may_have_more)
        return max(priorities, default=-math.inf)

    def _priority_of(self, fetcher: QueueFetcher) -> int:
        """Return the result of the application's priority function.

        If the function raises, its last result for the queue counts, or 0, so that the queue is not left out.
        """
        if self._priority is None:
            return 0
        queue = fetcher.queue
        try:
            priority = index(self._priority(queue))
        except Exception:
            priority = self._last_priorities.get(queue, 0)
            if queue not in self._failing_queues:
                self._failing_queues.add(queue)
                logger.exception("the priority of %s could not be determined, it counts as %d", queue, priority)
            return priority
        self._failing_queues.discard(queue)
        self._last_priorities[queue] = priority
        return priority

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1
