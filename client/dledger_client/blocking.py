"""Event loop in a thread of its own. Each blocking class of the client runs its calls on one."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from .errors import ClientClosedError, ClientError, ConcurrentUseError
from .messages import ReceivedMessage, Settlement

ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)


class ClosedAfterUse(ABC):
    """A blocking client that a `with` statement closes at the end of its block, even after an error."""

    @abstractmethod
    def close(self) -> None:
        """Finish work under way and close the client. Further calls have no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Blocking:
    """An event loop in a daemon thread. It runs `begin` first; an exception of that ends the thread.

    If the client is garbage-collected without being closed, `last` closes it, and a warning is issued.
    """

    def __init__(
        self,
        name: str,
        begin: Coroutine[None, None, None],
        last: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._lock = threading.RLock()  # reentrant: a signal handler may close the client while it interrupts a call
        self._stopped = False
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=name, daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _close_abandoned, name, self._loop, self._process_id, last)
        self._finalizer.atexit = False
        try:
            self.run(begin)
        except BaseException:
            self.stop()
            raise

    def require_usable(self) -> None:
        """Raise an error if the client cannot be used here.

        Raises `ClientClosedError` in a forked process, and `ConcurrentUseError` on the loop's own thread, which would
        wait for itself.
        """
        if os.getpid() != self._process_id:
            raise ClientClosedError(f"the client belongs to process {self._process_id}: make one in each process")
        if threading.get_ident() == self._thread.ident:
            raise ConcurrentUseError(
                f"a callback called a blocking client on that client's own thread ({self._name}), which would wait for "
                "itself: call it on another thread"
            )

    def run(self, work: Coroutine[None, None, ResultT], *, undo: Callable[[ResultT], None] | None = None) -> ResultT:
        """Run a coroutine on the loop and wait for its result.

        If a signal handler raises, the caller does not get the result; `undo` is then called with it on the loop.

        Raises the errors of `require_usable`, and `ClientClosedError` after `stop`. If the loop stops before there is a
        result, `ClientClosedError` is raised with an unknown outcome.
        """
        try:
            self.require_usable()
        except ClientError:
            work.close()
            raise
        future = None
        results: list[ResultT] = []
        recorded = _record_result(work, results)
        try:
            with self._lock, suppress(RuntimeError):  # a signal handler may close the loop in between
                if not self._stopped:
                    future = asyncio.run_coroutine_threadsafe(recorded, self._loop)
            if future is not None:
                return future.result()
        except CancelledError:
            error = ClientClosedError("the client was closed meanwhile")
            error.outcome = "unknown"
            raise error from None
        except BaseException:  # the work's own error, or a signal handler raised: the result is not awaited any more
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(_cancel_work, recorded, work, results, undo)
            raise
        recorded.close()
        work.close()
        raise ClientClosedError("the client is closed")

    def settle(
        self, message: ReceivedMessage[object], settlement: Settlement, original: ReceivedMessage[object]
    ) -> None:
        """Acknowledge a message or give it back, on the loop, from any thread.

        Raises `ClientClosedError` in a forked process.
        """
        if os.getpid() != self._process_id:
            raise ClientClosedError(
                f"the message was received by process {self._process_id}, which alone can acknowledge it"
            )
        with self._lock, suppress(RuntimeError):  # as in `run`
            if original.settle is not None and not self._stopped:
                self._loop.call_soon_threadsafe(original.settle, message, settlement)

    def finish(self, last: Coroutine[None, None, None], *, first: Callable[[], None] | None = None) -> None:
        """Call `first` on this thread, run a last coroutine, and stop. Further calls have no effect.

        Raises `ConcurrentUseError` on the loop's own thread. A forked process closes nothing, and logs that.
        """
        if os.getpid() != self._process_id:
            last.close()
            logger.warning("%s belongs to process %d, which closes it", self._name, self._process_id)
            return
        try:
            self.require_usable()
            if first is not None:
                first()
        except BaseException:  # a signal handler may raise while `first` waits
            last.close()
            raise
        try:
            with suppress(ClientClosedError):
                self.run(last)
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancel calls of other threads, stop the loop, and end the thread.

        Does nothing in a forked process, which has no thread.
        """
        if os.getpid() != self._process_id:
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._finalizer.detach()
        asyncio.run_coroutine_threadsafe(_cancel_all_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _close_abandoned(
    name: str, loop: asyncio.AbstractEventLoop, process_id: int, last: Callable[[], Coroutine[None, None, None]]
) -> None:
    """Close a client that was garbage-collected.

    The garbage collector may call this on any thread, including the loop's own, so it waits for nothing.
    """
    if os.getpid() != process_id:
        return

    async def end() -> None:
        try:
            await last()
        finally:
            await _cancel_all_others()
            loop.stop()

    tasks: list[asyncio.Task[None]] = []
    with suppress(RuntimeError):  # the interpreter is ending
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(end())))
    warnings.warn(f"{name} was never closed: use 'with', or call close()", ResourceWarning, stacklevel=2)


async def _record_result(work: Coroutine[None, None, ResultT], results: list[ResultT]) -> ResultT:
    """Run a coroutine, and note its result, in case that its caller never gets the future."""
    result = await work
    results.append(result)
    return result


def _cancel_work(
    recorded: Coroutine[None, None, object],
    work: Coroutine[None, None, ResultT],
    results: list[ResultT],
    undo: Callable[[ResultT], None] | None,
) -> None:
    """Cancel the task of a coroutine, or close the coroutine if it has no task; undo a result that is there.

    A signal handler can raise while the coroutine is handed to the loop. Its task may then run to its end, and its
    caller has no future by which to cancel it.
    """
    for task in asyncio.all_tasks():
        if task.get_coro() is recorded:
            task.add_done_callback(lambda _: _undo_work(work, results, undo))
            task.cancel()
            return
    recorded.close()
    _undo_work(work, results, undo)


def _undo_work(
    work: Coroutine[None, None, ResultT], results: list[ResultT], undo: Callable[[ResultT], None] | None
) -> None:
    work.close()  # it may not have begun
    if results and undo is not None:
        undo(results[0])


async def _cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def evaluate(value: Callable[[], ResultT]) -> ResultT:
    """Return the result of a function that is called on the loop."""
    return value()
