"""Time that a turn of the event loop has for requests, over all connections.

One read holds thousands of small requests, and a turn of the loop may read many connections. Requests that find no
time left wait in line for later turns, so that the loop sees timers and other connections in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Final, Protocol, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.03
"""Maximum time in seconds that requests take in one turn. The last request of a turn may exceed it."""


class Loop(Protocol):
    """The part of an event loop that turns need."""

    def time(self) -> float:
        """Return seconds."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """Call `callback` in the next turn."""


class RequestTurns:
    """Turns of a server's connections.

    A connection checks `has_time` before each request. If there is no time, it calls `wait`.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._turn_ends_at: float | None = None
        """Time when this turn's time ends; None before its first request."""
        self._waiting: deque[Callable[[], None]] = deque()

    @property
    def has_time(self) -> bool:
        """True if a request may be handled in this turn."""
        if self._turn_ends_at is None:
            self._turn_ends_at = self._begin_turn()
            return True
        return self._loop.time() < self._turn_ends_at

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn."""
        self._waiting.append(go_on)
        if self._turn_ends_at is None:
            self._turn_ends_at = self._begin_turn()

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run steps to their result: one in a turn at most, and none in a turn whose time is over.

        Steps of many requests thus share the time of a turn, as requests do.
        """
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def step() -> None:
            if result.done():  # cancelled: nobody waits any more
                steps.close()
                return
            try:
                next(steps)
            except StopIteration as end:
                result.set_result(end.value)
            except Exception as error:
                result.set_exception(error)
            else:
                self.wait(step)

        self.wait(step)
        return await result

    def _begin_turn(self) -> float:
        """Schedule the next turn. Return the time at which this turn ends."""
        self._loop.call_soon(self._next_turn)
        return self._loop.time() + SLICE_S

    def _next_turn(self) -> None:
        self._turn_ends_at = None
        for _ in range(len(self._waiting)):
            if not self.has_time:
                return
            self._waiting.popleft()()
