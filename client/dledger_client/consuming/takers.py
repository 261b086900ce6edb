"""Takers of messages: the task or thread that has taken a message of an iterated consumer, and has not finished it.

One rule decides which offsets may be committed: **a message is not acknowledged until its taker finishes it.** Its
taker is the task that asked for it. That task finishes it by asking for the next one. Any holder of the message
finishes it by `ack` or `retry`. Nothing else finishes it: not another task that asks, not the end of the `async with`
block, not an error or a time-out. A message that is not finished is delivered again.

A task asks when it *calls* `anext`, even if another task then waits for the answer. `asyncio.wait_for(anext(consumer),
5)` creates such a task on Python 3.11, and the caller is the taker all the same.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Final
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from ..blocking import Blocking
from ..errors import ConcurrentUseError
from ..messages import ReceivedMessage, Settlement

CLOSE_TIMEOUT_SECONDS: Final = 5.0
"""Default time limit in seconds for the messages in work when a consumer is closed."""

_LOOK_SECONDS: Final = 0.02
"""Interval in seconds at which a closing consumer looks at its threads: a thread that ends tells nobody."""

Taker = asyncio.Task[object]


class Takers:
    """Messages that are taken and not finished by asking. Belongs to one event loop.

    A task that has ended is forgotten together with its message: it cannot finish the message any more.
    """

    def __init__(self) -> None:
        self._taken_messages: WeakKeyDictionary[Taker, ReceivedMessage[object]] = WeakKeyDictionary()
        self._waiting_tasks: WeakSet[Taker] = WeakSet()
        self._finished = asyncio.Event()

    def finish(self, taker: Taker | None) -> ReceivedMessage[object] | None:
        """Return the message that `taker` finishes by asking for the next one, None if it has none."""
        message = None if taker is None else self._taken_messages.pop(taker, None)
        self._finished.set()
        return message

    def begin_to_ask(self, taker: Taker | None) -> None:
        """Record that `taker` waits for a message. Raises `ConcurrentUseError` if it already waits for one.

        A task that asked for two at once and then for a third would have finished neither.
        """
        if taker is not None:
            if taker in self._waiting_tasks:
                raise ConcurrentUseError(
                    "this task waits for a message of this consumer already: take messages in several tasks, each of "
                    "which iterates, or take several at a time by receive(), or give the consumer a handler"
                )
            self._waiting_tasks.add(taker)

    def end_to_ask(self, taker: Taker | None, message: ReceivedMessage[object] | None) -> None:
        """Record that `taker` has stopped waiting, with a message or without."""
        if taker is not None:
            self._waiting_tasks.discard(taker)
            if message is not None:
                self._taken_messages[taker] = message

    async def all_finished(self, but: Taker | None) -> None:
        """Wait until each task except `but` has asked for another message or ended."""
        while working := [taker for taker in self._taken_messages if taker is not but and not taker.done()]:
            self._finished.clear()
            finished = asyncio.create_task(self._finished.wait())
            try:
                await asyncio.wait([finished, *working], return_when=asyncio.FIRST_COMPLETED)
            finally:
                finished.cancel()


class ThreadSafeSettle:
    """Settles a message on its event loop, from any thread. `called` says that this has happened."""

    __slots__ = ("_blocking", "_original", "called")

    def __init__(self, blocking: Blocking, original: ReceivedMessage[object]) -> None:
        self._blocking = blocking  # a message keeps its consumer's event loop in use, but not the consumer
        self._original = original
        self.called = False

    def __call__(self, message: ReceivedMessage[object], settlement: Settlement) -> None:
        self._blocking.settle(message, settlement, self._original)
        self.called = True


class _TakerThread:
    """The message that a thread has taken and not finished by asking, None without any. It ends with its thread."""

    __slots__ = ("__weakref__", "message")

    def __init__(self) -> None:
        self.message: ReceivedMessage[object] | None = None


class TakerThreads:
    """Messages that threads have taken and not finished by asking.

    A thread that has ended is forgotten together with its message, as `Takers` forgets tasks.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._all: WeakValueDictionary[int, _TakerThread] = WeakValueDictionary()

    @property
    def message(self) -> ReceivedMessage[object] | None:
        """The message that this thread has taken, None without any."""
        own: _TakerThread | None = getattr(self._own, "taker", None)
        return None if own is None else own.message

    def take(self, message: ReceivedMessage[object] | None) -> None:
        """Record that this thread has taken a message, or finished the one that it had."""
        own: _TakerThread | None = getattr(self._own, "taker", None)
        if own is None:
            own = self._own.taker = self._all[threading.get_ident()] = _TakerThread()
        own.message = message

    def wait_for_others(self, deadline: float) -> None:
        """Wait until no other living thread has a message that is not settled, or until `deadline` by the monotonic
        clock.
        """
        self.take(None)
        while self._is_any_at_work() and (remaining := deadline - time.monotonic()) > 0:
            time.sleep(min(_LOOK_SECONDS, remaining))

    def _is_any_at_work(self) -> bool:
        takers = [taker() for taker in self._all.valuerefs()]
        settles = [taker.message.settle for taker in takers if taker is not None and taker.message is not None]
        return any(isinstance(settle, ThreadSafeSettle) and not settle.called for settle in settles)
