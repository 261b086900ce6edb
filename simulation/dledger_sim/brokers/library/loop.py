"""Event loop of one simulated client process: asyncio's tasks and futures on simulated time.

It has what the client library uses: timers, tasks, futures and outgoing connections. It has no threads, files, name
look-ups and signals. A client that asks for them gets an error, which is a broken promise.
"""

from __future__ import annotations

import asyncio
from asyncio.events import _set_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar, cast

from dledger_sim.log.scheduler import Scheduler

T = TypeVar("T")

MOST_CANCELLATIONS: Final = 10
"""Maximum number of times that a task of a dead process is cancelled."""

Dial = Callable[[Callable[[], asyncio.Protocol], int], Awaitable[tuple[asyncio.Transport, asyncio.Protocol]]]
"""Function that connects a protocol to a port. Raises `OSError`."""


class ClientLoop:
    """Event loop whose turns run the ready callbacks in order. After `kill` nothing runs any more.

    `unhandled` gets exceptions that no task awaited. `after_turn` is called after each turn, outside of the loop.
    """

    def __init__(
        self, scheduler: Scheduler, unhandled: Callable[[BaseException], None], after_turn: Callable[[], None]
    ) -> None:
        self._scheduler = scheduler
        self._unhandled = unhandled
        self._after_turn = after_turn
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_is_due = False
        self._is_buried = False
        self._stopped_until = 0.0
        self.alive = True
        self.dial: Dial | None = None
        self.context = copy_context()
        """Context in which the process's own callbacks run."""

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """This loop with the type that asyncio expects."""
        return cast(asyncio.AbstractEventLoop, self)

    def kill(self) -> None:
        """End the process: tasks stop where they are."""
        self.alive = False
        self._ready.clear()

    def stop(self, until: float) -> None:
        """Stop the process (SIGSTOP) until a moment.

        Everything that becomes ready in the pause runs afterwards, in one turn.
        """
        self._stopped_until = max(self._stopped_until, until)

    def bury(self) -> None:
        """Unwind the tasks of a dead process after the run.

        Otherwise the garbage collector would complain about each.
        """
        self.kill()
        self._is_buried = True
        for _ in range(MOST_CANCELLATIONS):
            for task in asyncio.all_tasks(self.as_loop):
                task.cancel()
            while self._ready:
                self._run_ready()

    def time(self) -> float:
        """Return the simulated time in seconds."""
        return self._scheduler.now

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call in the next turn."""
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        self._add(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call after a delay in seconds."""
        return self.call_at(self._scheduler.now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call at a moment of simulated time."""
        handle = asyncio.TimerHandle(when, callback, args, self.as_loop, context)
        if self.alive:
            self._scheduler.at(when, lambda: self._add(handle))
        return handle

    def from_outside(self, callback: Callable[..., object], *args: object) -> None:
        """Call in a turn of this loop, for a connection or for the owner of the process."""
        self.call_soon(callback, *args, context=self.context)

    def _add(self, handle: asyncio.Handle) -> None:
        if handle.cancelled() or not (self.alive or self._is_buried):
            return
        self._ready.append(handle)
        if not self._turn_is_due and self.alive:
            self._turn_is_due = True
            self._scheduler.after(0.0, self._run_turn)

    def _run_turn(self) -> None:
        if self._scheduler.now < self._stopped_until:
            self._scheduler.at(self._stopped_until, self._run_turn)
            return
        self._turn_is_due = False
        self._run_ready()
        self._after_turn()

    def _run_ready(self) -> None:
        _set_running_loop(self.as_loop)
        try:
            for _ in range(len(self._ready)):
                if not self._ready:  # the process was killed in this turn
                    break
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001 - event loops call this method of handles
        finally:
            _set_running_loop(None)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is skipped when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future of this loop."""
        return asyncio.Future(loop=self.as_loop)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Return a new task of this loop."""
        return asyncio.Task(coro, loop=self.as_loop, name=name, context=context)

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        ssl: object = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to a simulated server. Hosts differ only by port, and no server has TLS."""
        if self.dial is None or ssl is not None:
            raise NotImplementedError(f"TLS to {host}:{port} is not simulated")
        return await self.dial(protocol_factory, port)

    def get_debug(self) -> bool:
        """Return False: the debug mode would read the real clock."""
        return False

    def is_running(self) -> bool:
        """Return whether the process lives."""
        return self.alive

    def is_closed(self) -> bool:
        """Return False: the loop of a dead process is dropped, never closed."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an uncaught exception. Tasks that die with their process are not reported."""
        error = context.get("exception")
        if self.alive and isinstance(error, BaseException):
            self._unhandled(error)
