"""Event loop of asyncio on simulated time, for services that use coroutines.

The loop offers only what tasks and futures need. A service that sleeps, waits or opens sockets through asyncio itself
would leave simulated time; it gets an `AttributeError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Protocol, TypeVar, cast

T = TypeVar("T")


class Calls(Protocol):
    """Part of a simulated environment that the loop needs."""

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call on the event loop now, after the current event."""


class SimEventLoop:
    """Loop of one life of a node. `unhandled` gets the exception of a task that was not awaited."""

    def __init__(self, environment: Calls, unhandled: Callable[[BaseException], None]) -> None:
        self._environment = environment
        self._unhandled = unhandled

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """This loop with the type that tasks and futures expect."""
        return cast(asyncio.AbstractEventLoop, self)

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> None:
        """Call now, after the current event. No handle is returned: tasks and futures keep none."""
        self._environment.call_soon(partial((context or copy_context()).run, callback, *args))

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future of this loop."""
        return asyncio.Future(loop=self.as_loop)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Return a new task of this loop."""
        return asyncio.Task(coro, loop=self.as_loop, name=name, context=context)

    @staticmethod
    def get_debug() -> bool:
        """Return False: the debug mode would read the real clock."""
        return False

    @staticmethod
    def is_closed() -> bool:
        """Return False: the loop of a dead node is dropped, never closed."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an uncaught exception. Tasks that die with their node bring no exception here."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._unhandled(error)
