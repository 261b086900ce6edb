"""An event loop in a thread of its own, for a client that blocks: what each blocking class runs its calls on."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from .errors import ClientClosedError
from .messages import ReceivedMessage, Settlement

ResultT = TypeVar("ResultT")


class ClosedAfterUse(ABC):
    """A blocking client that a `with` statement closes at the end of its block, however that ends."""

    @abstractmethod
    def close(self) -> None:
        """Finish what is under way and end the client; without effect if that has been done."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Blocking:
    """An event loop in a daemon thread, and what runs on it, `begin` first; what that raises ends the thread."""

    def __init__(self, name: str, begin: Coroutine[None, None, None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._lock = threading.RLock()  # a signal handler may close what it has interrupted
        self._stopped = False
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()
        try:
            self.run(begin)
        except BaseException:
            self.stop()
            raise

    def run(self, work: Coroutine[None, None, ResultT], *, undo: Callable[[ResultT], None] | None = None) -> ResultT:
        """Run a coroutine on the loop and wait for its result.

        `undo` is called on the loop with a result that the caller does not get, because a signal's handler raised.

        Raises `ClientClosedError` after `stop`, in a process that was forked, and, then of unknown outcome, if the loop
        is stopped before there is a result.
        """
        if os.getpid() != self._process_id:
            work.close()
            raise ClientClosedError(f"the client belongs to process {self._process_id}: make one in each process")
        future = None
        try:
            with self._lock, suppress(RuntimeError):  # a signal handler may close the loop in between
                if not self._stopped:
                    future = asyncio.run_coroutine_threadsafe(work, self._loop)
            if future is not None:
                return future.result()
        except CancelledError:
            stopped = ClientClosedError("the client was closed meanwhile")
            stopped.outcome = "unknown"
            raise stopped from None
        except BaseException:  # the work's own, or a signal's handler raised: nobody waits for the result any more
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_cut_off, work)
                if future is not None and undo is not None:
                    self._loop.call_soon_threadsafe(future.add_done_callback, partial(_undo, undo))
            raise
        work.close()
        raise ClientClosedError("the client is closed")

    def settle(self, message: ReceivedMessage, settlement: Settlement, original: ReceivedMessage) -> None:
        """Acknowledge or give back on the loop, whichever thread asks for it."""
        if os.getpid() != self._process_id:
            return
        with self._lock, suppress(RuntimeError):  # as in `run`
            if original.settle is not None and not self._stopped:
                self._loop.call_soon_threadsafe(original.settle, message, settlement)

    def finish(self, last: Coroutine[None, None, None]) -> None:
        """Run a last coroutine, and stop; without effect if that has been done."""
        try:
            with suppress(ClientClosedError):
                self.run(last)
        finally:
            self.stop()

    def stop(self) -> None:
        """End what other threads still wait for, stop the loop, and end the thread, which a forked process has not."""
        if os.getpid() != self._process_id:
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        asyncio.run_coroutine_threadsafe(_cancel_all_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _cut_off(work: Coroutine[None, None, object]) -> None:
    """Cancel the task of a coroutine, or close the coroutine if it has none.

    A signal's handler can raise while the coroutine is handed to the loop: its task may run, and its caller holds no
    future by which to cancel it.
    """
    for task in asyncio.all_tasks():
        if task.get_coro() is work:
            task.cancel()
            return
    work.close()


def _undo(undo: Callable[[ResultT], None], future: Future[ResultT]) -> None:
    if not future.cancelled() and future.exception() is None:
        undo(future.result())


async def _cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def evaluate(value: Callable[[], ResultT]) -> ResultT:
    """What a function returns, called on the loop."""
    return value()
