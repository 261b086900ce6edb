"""An asyncio event loop on simulated time, for services that use coroutines.

Only what tasks and futures need is there: a service that sleeps, waits or opens sockets by asyncio itself would leave
simulated time, and meets an `AttributeError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")


class Calls(Protocol):
    """What the loop needs of a simulated environment."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        """See `Environment.call_soon`."""


class SimEventLoop:
    """The loop of one life of one node; `unhandled` gets the exception of a task that nobody awaited."""

    def __init__(self, environment: Calls, unhandled: Callable[[BaseException], None]) -> None:
        self._environment = environment
        self._unhandled = unhandled

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """This loop, as tasks and futures take it."""
        return cast(asyncio.AbstractEventLoop, self)

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> None:
        """See `asyncio.AbstractEventLoop.call_soon`; tasks and futures keep no handle."""
        self._environment.call_soon(partial((context or copy_context()).run, callback, *args))

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return asyncio.Future(loop=self.as_loop)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """A task of this loop."""
        return asyncio.Task(coro, loop=self.as_loop, name=name, context=context)

    @staticmethod
    def get_debug() -> bool:
        """No debug mode: it reads the real clock."""
        return False

    @staticmethod
    def is_closed() -> bool:
        """Never: a dead node's loop is forgotten."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception that nobody caught; tasks that die with their node are no news."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._unhandled(error)
