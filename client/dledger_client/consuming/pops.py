"""Pops of one consumer, which outlive the calls that asked for them.

A broker that receives a pop hides its messages from the group, even if no call waits for them any more. The caller may
be gone by then (`asyncio.wait_for`, a signal), or the attempt was given up before its answer came. Messages of such a
pop go to the next `receive`. Without a `receive` soon, they are given back to the group, as undelivered messages.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeAlias

from ..cluster.core import ClientCore
from ..errors import ClientClosedError, ClientError
from ..messages import ReceivedMessage

logger = logging.getLogger(__name__)

KEPT_SHARE: Final = 4
"""Divisor of the invisible time: unclaimed messages are given back after this part of it."""
PATIENCE_SECONDS: Final = 1.0
"""Time limit in seconds for one broker group, beyond its poll, before the next group is asked as well."""

Found: TypeAlias = Callable[[Sequence[ReceivedMessage]], None]
Ask: TypeAlias = Callable[[str, int, float, Found], Coroutine[None, None, Sequence[ReceivedMessage]]]
"""Asks one broker group for a number of messages, and waits some seconds for the first.

Its last argument is called with the messages of a late answer.
"""


class _Pop:
    """A pop under way at a broker group, and whether a call waits for it.

    `is_slow` says that its group does not answer.
    """

    __slots__ = ("_is_claimed", "is_awaited", "is_slow", "polls_until", "task")

    def __init__(self, task: asyncio.Task[Sequence[ReceivedMessage]], polls_until: float) -> None:
        self.task = task
        self.polls_until = polls_until
        self.is_awaited = True
        self.is_slow = False
        self._is_claimed = False

    @property
    def has_messages(self) -> bool:
        """True if the pop has brought messages that no call has claimed."""
        is_done = self.task.done() and not self.task.cancelled()
        return is_done and not self._is_claimed and self.task.exception() is None

    def claim(self) -> Sequence[ReceivedMessage]:
        """Return its messages. Raises `ClientError`."""
        if self.task.cancelled():
            raise ClientClosedError("the consumer is closed")
        self._is_claimed = True
        return self.task.result()


class Pops:
    """Pops of one started consumer. `give_back` returns messages to their group."""

    def __init__(
        self,
        core: ClientCore,
        ask: Ask,
        give_back: Callable[[ReceivedMessage], Coroutine[None, None, None]],
        invisible_seconds: float,
    ) -> None:
        self._core = core
        self._ask = ask
        self._give_back = give_back
        self._keep_seconds = invisible_seconds / KEPT_SHARE
        self._unclaimed: deque[ReceivedMessage] = deque()
        self._has_unclaimed = asyncio.Event()
        self._pending_pops: dict[str, list[_Pop]] = {}
        self._return_tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def take(self, max_messages: int) -> list[ReceivedMessage]:
        """Return messages of callers that are gone."""
        messages = [self._unclaimed.popleft() for _ in range(min(max_messages, len(self._unclaimed)))]
        if not self._unclaimed:
            self._has_unclaimed.clear()
        return messages

    def is_slow(self, broker_group: str) -> bool:
        """Return whether a broker group has not answered an earlier pop in time, and the pop still waits."""
        return any(pop.is_slow for pop in self._pending_pops.get(broker_group, ()))

    async def pop(
        self, broker_group: str, max_messages: int, poll_seconds: float, patience_seconds: float
    ) -> list[ReceivedMessage] | None:
        """Return messages of a broker group, or messages of earlier callers. Returns None if the group does not answer
        in time.

        Raises `ClientError`. Messages of a call that is cancelled are kept for the next call.
        """
        pop = self._adopt_pop(broker_group, poll_seconds) or self._start_pop(broker_group, max_messages, poll_seconds)
        limit = poll_seconds + patience_seconds
        unclaimed_task = self._core.loop.create_task(self._has_unclaimed.wait())
        try:
            done, _ = await asyncio.wait(
                (pop.task, unclaimed_task),
                timeout=None if math.isinf(limit) else limit,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not pop.task.done():
                pop.is_slow = not done
                return self.take(max_messages) if done else None
            messages = pop.claim()
        finally:
            unclaimed_task.cancel()
            pop.is_awaited = False
            if pop.has_messages:
                self.keep(pop.claim())
        self.keep(messages[max_messages:])
        return list(messages[:max_messages])

    def keep(self, messages: Sequence[ReceivedMessage]) -> None:
        """Keep messages without a waiting call for the next call."""
        if not messages:
            return
        if self._is_closed:
            self._give_all_back(messages)
            return
        self._unclaimed.extend(messages)
        self._has_unclaimed.set()
        self._core.spawn(self._keep_for_a_while(messages), "popped messages that nobody waits for")

    async def close(self, limit_seconds: float) -> None:
        """Give back unclaimed messages. Waits for pops that may still bring messages."""
        tasks = [pop.task for pops in self._pending_pops.values() for pop in pops]
        pending_tasks = [pop.task for pops in self._pending_pops.values() for pop in pops if not pop.is_slow]
        if pending_tasks:
            await asyncio.wait(pending_tasks, timeout=limit_seconds)
        self._is_closed = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._give_all_back(self.take(len(self._unclaimed)))
        if self._return_tasks:
            await asyncio.wait(self._return_tasks)

    def _adopt_pop(self, broker_group: str, poll_seconds: float) -> _Pop | None:
        """Return a pop without a waiting call that ends within the caller's time limit, None without any.

        Another pop would only add to the broker's load.
        """
        until = self._core.loop.time() + poll_seconds
        for pop in self._pending_pops.get(broker_group, ()):
            if not pop.is_awaited and not pop.task.done() and (pop.is_slow or pop.polls_until <= until):
                pop.is_awaited = True
                return pop
        return None

    def _start_pop(self, broker_group: str, max_messages: int, poll_seconds: float) -> _Pop:
        request = self._ask(broker_group, max_messages, poll_seconds, self.keep)
        task = self._core.loop.create_task(request, name=f"pop of {broker_group}")
        pop = _Pop(task, self._core.loop.time() + poll_seconds)
        self._pending_pops.setdefault(broker_group, []).append(pop)
        task.add_done_callback(lambda _: self._on_pop_done(broker_group, pop))
        return pop

    def _on_pop_done(self, broker_group: str, pop: _Pop) -> None:
        self._pending_pops[broker_group].remove(pop)
        if pop.is_awaited or pop.task.cancelled():
            return
        if (error := pop.task.exception()) is None:
            self.keep(pop.claim())
        else:
            level = logging.WARNING if isinstance(error, ClientError) else logging.ERROR
            logger.log(level, "a pop of %s that nobody waits for any more failed: %s", broker_group, error)

    async def _keep_for_a_while(self, messages: Sequence[ReceivedMessage]) -> None:
        await asyncio.sleep(self._keep_seconds)
        ids = {id(message) for message in messages}
        expired = [message for message in self._unclaimed if id(message) in ids]
        self._unclaimed = deque(message for message in self._unclaimed if id(message) not in ids)
        if not self._unclaimed:
            self._has_unclaimed.clear()
        if expired:
            logger.info("%d popped messages that nobody asks for go back to their group", len(expired))
            self._give_all_back(expired)

    def _give_all_back(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            task = self._core.spawn(self._give_back(message), "return of a popped message")
            self._return_tasks.add(task)
            task.add_done_callback(self._return_tasks.discard)
