"""Takers of messages: which task has got which message of an iterated consumer, and has not finished it.

One rule decides what may be committed: **a message is finished by its taker, or it is not acknowledged.** Its taker is
the task that asked for it. That task finishes it by asking for the next one; who has the message finishes it by `ack`
or `retry`. Nothing else does: not another task that asks, not the end of the `async with` block, not an error or a
time-out, whether it is caught inside the block or not. What is not finished is delivered again.

A task asks when it *calls* `anext`, whichever task then waits for the answer: `asyncio.wait_for(anext(consumer), 5)`
makes a task of its own on Python 3.11, and the caller is the taker all the same.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary, WeakSet

from .errors import ConcurrentUseError
from .messages import ReceivedMessage

Taker = asyncio.Task[object]


class Takers:
    """The messages that are taken and not finished by asking. Belongs to one event loop.

    A task that has ended is forgotten, and its message with it: nobody can finish that by asking any more.
    """

    def __init__(self) -> None:
        self._taken: WeakKeyDictionary[Taker, ReceivedMessage] = WeakKeyDictionary()
        self._asking: WeakSet[Taker] = WeakSet()
        self._finished = asyncio.Event()

    def finish(self, taker: Taker | None) -> ReceivedMessage | None:
        """The message that `taker` finishes by asking for the next one, if it has one."""
        message = None if taker is None else self._taken.pop(taker, None)
        self._finished.set()
        return message

    def begin_to_ask(self, taker: Taker | None) -> None:
        """`taker` waits for a message. Raises `ConcurrentUseError` if it waits for one already: who asks for two at
        once and then for a third has finished neither.
        """
        if taker is not None:
            if taker in self._asking:
                raise ConcurrentUseError(
                    "this task waits for a message of this consumer already: take messages in several tasks, each of "
                    "which iterates, or take several at a time by receive(), or give the consumer a handler"
                )
            self._asking.add(taker)

    def end_to_ask(self, taker: Taker | None, message: ReceivedMessage | None) -> None:
        """`taker` has got a message, or none."""
        if taker is not None:
            self._asking.discard(taker)
            if message is not None:
                self._taken[taker] = message

    async def all_finished(self, but: Taker | None) -> None:
        """Wait until no living task but one has a message, that is, until each has asked or ended."""
        while working := [taker for taker in self._taken if taker is not but and not taker.done()]:
            self._finished.clear()
            finished = asyncio.create_task(self._finished.wait())
            try:
                await asyncio.wait([finished, *working], return_when=asyncio.FIRST_COMPLETED)
            finally:
                finished.cancel()
