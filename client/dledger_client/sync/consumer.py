"""Push consumer for programs without an event loop, as an iterator.

The calls that need nothing but the event loop are in `calls`, which `make fix` writes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Generic, Unpack

import msgspec

from .. import interception
from ..arguments import at_least, check
from ..blocking import Blocking
from ..consumer import PushConsumer
from ..consuming.takers import TakerThreads, ThreadSafeSettle
from ..errors import ClientClosedError
from ..interception import ReceiveCall
from ..messages import Codec, ReceivedMessage, T
from ..subscriptions import Filter
from .calls import ConsumerOptions, PushConsumerCalls

_PREFETCH: int = 32


class SyncConsumer(PushConsumerCalls[T], Generic[T]):
    """A blocking `PushConsumer`, to iterate over.

        with SyncConsumer("127.0.0.1:9876", "CG", "orders") as consumer:
            for message in consumer:
                print(message.body)

    A message is not acknowledged until its taker finishes it. The thread that took it finishes it by asking for the
    next one, unless `auto_ack` is False. Any thread finishes it by `message.ack()` or `message.retry()`. Neither an
    error nor the end of the `with` block finishes a message: acknowledge the last one before `break`. Several threads
    may iterate.

    The iteration takes up to 32 messages at a time from the event loop; with `priority` it takes one. All of them count
    as in work, for `stalled` too, and are also delivered to another member if their queue moves to it. `pause` does not
    keep them back. The iteration ends when another thread calls `close`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        subscriptions: str | Sequence[str] | Mapping[str, Filter],
        *,
        codec: Codec[T] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._client = PushConsumer(name_servers, group, subscriptions, codec=codec, **options)
        delivery = self._client.settings.delivery
        self._auto_ack = delivery.auto_ack
        self._prefetch = 1 if delivery.priority else _PREFETCH
        self._buffer: deque[ReceivedMessage[T]] = deque()
        self._receive_lock = threading.Lock()
        self._takers = TakerThreads()
        self._close_timeout = self._client.settings.times.close_timeout
        self._close_at = math.inf
        """Deadline for the messages in work, by the monotonic clock, once some thread has called `close`."""
        self._blocking = Blocking("dledger consumer", self._client.start(), self._client.close)

    def close(self) -> None:
        """Wait for the messages of other threads, for at most `close_timeout` seconds, commit, and leave the group.

        A thread has ended its work on its message once it asks for the next one, ends, or acknowledges the message or
        gives it back. Messages that were received and not acknowledged will be delivered again.
        """
        self._close_at = min(self._close_at, time.monotonic() + self._close_timeout)
        self._blocking.finish(self._client.close(), first=lambda: self._takers.wait_for_others(self._close_at))

    def __iter__(self) -> Iterator[ReceivedMessage[T]]:
        return self

    def __next__(self) -> ReceivedMessage[T]:
        self._blocking.require_usable()
        unfinished = self._takers.message
        if unfinished is not None and self._auto_ack:
            unfinished.ack()
        self._takers.take(None)
        message: ReceivedMessage[T] | None = None
        try:
            if (around := interception.interceptor) is None:
                with self._receive_lock:
                    message = self._next_message()
            else:
                call = ReceiveCall(self._client._caller, "iterate")  # noqa: SLF001 - this is its blocking form
                with around.receiving(call), self._receive_lock:
                    message = self._next_message()
                    call.messages = (message,)
            self._takers.take(message)
        except BaseException:  # a signal handler raised: the caller does not get the message
            if message is not None:
                self._takers.take(None)
                with self._receive_lock:
                    self._buffer.appendleft(message)
            raise
        return message

    def _next_message(self) -> ReceivedMessage[T]:
        """Return the next message, for one thread at a time. Raises `StopIteration` once the consumer is closed."""
        while not self._buffer and not self._is_closed():
            try:
                self._blocking.run(self._read_ahead())
            except ClientClosedError:
                if not self._is_closed():
                    raise
        if self._is_closed():
            raise StopIteration
        message = self._buffer[0]
        del self._buffer[0]  # not `popleft()`: a signal handler may run after a call, and raise
        return message

    async def _read_ahead(self) -> None:
        """Read on the loop, so that the messages are there for the next call if this thread is interrupted."""
        messages = await self._client._take(self._prefetch, timeout=1.0)  # noqa: SLF001 - this is its blocking form
        self._buffer.extend(self._make_thread_safe(message) for message in messages)

    def _is_closed(self) -> bool:
        """Return whether some thread has called `close`, as of now."""
        return self._close_at < math.inf

    def receive(self, max_messages: int = 32, timeout: float | None = None) -> list[ReceivedMessage[T]]:
        """Return up to `max_messages` messages, as `PushConsumer.receive` does.

        They must be acknowledged one by one. If a signal handler interrupts a call, the next call returns its messages.
        """
        check("max_messages", max_messages, int)
        check("timeout", timeout, float | None)
        return self._blocking.run(self._receive(max_messages, timeout), undo=self._put_back)

    async def _receive(self, max_messages: int, timeout: float | None) -> list[ReceivedMessage[T]]:
        if (around := interception.interceptor) is None:
            return await self._take(max_messages, timeout)
        call = ReceiveCall(self._client._caller, "receive")  # noqa: SLF001 - this is its blocking form
        with around.receiving(call):
            call.messages = messages = await self._take(max_messages, timeout)
        return messages

    async def _take(self, max_messages: int, timeout: float | None) -> list[ReceivedMessage[T]]:
        at_least(1, max_messages=max_messages)
        if not self._buffer:
            messages = await self._client._take(max_messages, timeout)  # noqa: SLF001 - this is its blocking form
            return [self._make_thread_safe(message) for message in messages]
        buffered: list[ReceivedMessage[T]] = []
        with suppress(IndexError):  # a thread that iterates may take some as well
            while len(buffered) < max_messages:
                buffered.append(self._buffer.popleft())
        return buffered

    def _put_back(self, messages: list[ReceivedMessage[T]]) -> None:
        self._buffer.extendleft(reversed(messages))

    def nack(self, message: ReceivedMessage[object], *, delay_s: float | None = None) -> None:
        """Give back a message that could not be processed, as `PushConsumer.nack` does."""
        check("message", message, ReceivedMessage)
        message.retry(delay_s=delay_s)

    def _make_thread_safe(self, original: ReceivedMessage[T]) -> ReceivedMessage[T]:
        return msgspec.structs.replace(original, settle=ThreadSafeSettle(self._blocking, original))
