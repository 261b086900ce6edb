"""Sources of a subscriber's messages: the consumers of our client, as one of two kinds."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, TypeAlias

from dledger_client import ClientClosedError, ClientError, NoRouteError, PushConsumer, ReceivedMessage, SimpleConsumer
from dledger_remoting.pop import MAX_POP_MESSAGES

from .connections import Connection
from .leases import Lease
from .subscriptions import Subscription

logger = logging.getLogger(__name__)

Handle: TypeAlias = Callable[[ReceivedMessage], Awaitable[None]]
"""Work of a subscriber on one message. It settles the message and raises no `Exception`."""

_POLL_SECONDS: Final = 10.0
_TOPIC_SECONDS: Final = 0.5
"""Interval in seconds at which a popping source looks whether its topic exists."""
_FIRST_PAUSE_SECONDS: Final = 0.1
_MAX_PAUSE_SECONDS: Final = 5.0
_CUT_OFF_SECONDS: Final = 1.0
"""Time limit in seconds for cancelled handlers to end."""


class Source(ABC):
    """Messages of one subscription, from a consumer of its own."""

    @abstractmethod
    async def start(self, handle: Handle | None) -> None:
        """Join the group. Each message goes to `handle`; without it, `receive` returns messages.

        Raises `ClientError`, for example if no name server answers.
        """

    @abstractmethod
    async def receive(self, max_messages: int, wait: float | None) -> list[ReceivedMessage]:
        """Return up to `max_messages` messages, none after `wait` seconds (None: no limit). Raises `ClientError`."""

    @abstractmethod
    def hold(self, messages: Sequence[ReceivedMessage]) -> AbstractAsyncContextManager[None]:
        """Return a context in which no other member of the group gets these messages."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for messages in work, as long as the subscription's `close_timeout` says, and leave the group.

        May be called again. Called by a handler, it does not wait for the handler's own message.
        """

    async def receive_patiently(self, max_messages: int) -> list[ReceivedMessage]:
        """Return at least one message. Errors are logged, and the request is repeated after a pause that grows.

        Raises `ClientClosedError` once the source is closed.
        """
        failures = 0
        while True:
            try:
                return await self.receive(max_messages, None)
            except ClientClosedError:
                raise
            except Exception as error:  # a subscriber that ends here would be missed by nobody
                pause_s = min(_FIRST_PAUSE_SECONDS * (1 << min(failures, 10)), _MAX_PAUSE_SECONDS)
                is_expected = isinstance(error, ClientError)
                text = "no messages, asking again in %.1f s: %s"
                logger.log(
                    logging.WARNING if is_expected else logging.ERROR, text, pause_s, error, exc_info=not is_expected
                )
                await asyncio.sleep(pause_s)
                failures += 1


class PushSource(Source):
    """Messages of the queues that this member of the group has: shared, in order, or all of them."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._consumer: PushConsumer | None = None

    async def start(self, handle: Handle | None) -> None:
        subscription, connection = self._subscription, self._connection
        is_ordered = subscription.mode == "ordered"

        self._consumer = PushConsumer(
            connection.name_servers,
            subscription.group,
            dict.fromkeys(subscription.topics, subscription.filter),
            handle,
            concurrency=subscription.max_workers,
            auto_ack=False,
            orderly=is_ordered,
            queue_locks=is_ordered,
            broadcast=subscription.mode == "broadcast",
            offset_file=subscription.offset_file,
            start_from=subscription.start_from,
            max_reconsume_times=subscription.max_reconsume_times,
            start_timeout=connection.start_timeout,
            close_timeout=subscription.close_timeout,
            namespace=connection.namespace,
            credentials=connection.credentials,
            tls=connection.tls,
            trace=connection.trace,
        )
        await self._consumer.start()

    async def receive(self, max_messages: int, wait: float | None) -> list[ReceivedMessage]:
        assert self._consumer is not None, "the source is not started"
        return await self._consumer.receive(max_messages, wait)

    @asynccontextmanager
    async def hold(self, messages: Sequence[ReceivedMessage]) -> AsyncIterator[None]:  # noqa: ARG002 -- it has them
        yield

    async def close(self) -> None:
        if self._consumer is not None:
            await self._consumer.close()


class PoppingSource(Source):
    """Messages taken one by one from any queue of one topic, each under a lease."""

    def __init__(self, connection: Connection, subscription: Subscription) -> None:
        self._connection = connection
        self._subscription = subscription
        self._consumer: SimpleConsumer | None = None
        self._dispatcher: asyncio.Task[None] | None = None
        self._works: set[asyncio.Task[None]] = set()
        self._is_topic_missed = False

    async def start(self, handle: Handle | None) -> None:
        subscription, connection = self._subscription, self._connection
        self._consumer = SimpleConsumer(
            connection.name_servers,
            subscription.group,
            subscription.topics[0],
            filter=subscription.filter,
            invisible=subscription.invisible,
            from_beginning=subscription.start_from == "first",
            namespace=connection.namespace,
            credentials=connection.credentials,
            tls=connection.tls,
            trace=connection.trace,
        )
        await self._consumer.start()
        if handle is not None:
            self._dispatcher = asyncio.create_task(self._dispatch(handle), name="dispatch popped messages")

    async def receive(self, max_messages: int, wait: float | None) -> list[ReceivedMessage]:
        assert self._consumer is not None, "the source is not started"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (math.inf if wait is None else wait)
        while True:
            wait_s = max(0.0, min(_POLL_SECONDS, deadline - loop.time()))
            popped: list[ReceivedMessage] = []
            try:
                popped = await self._consumer.receive(min(max_messages, MAX_POP_MESSAGES), wait=wait_s)
            except NoRouteError as error:  # consumers of the other modes wait for their topics, too
                if not self._is_topic_missed:
                    logger.warning("waiting for the topic: %s", error)
                self._is_topic_missed = True
                await asyncio.sleep(min(wait_s, _TOPIC_SECONDS))
            if popped or loop.time() >= deadline:
                invisible = self._subscription.invisible
                return [Lease(self._consumer, message, invisible).message for message in popped]

    @asynccontextmanager
    async def hold(self, messages: Sequence[ReceivedMessage]) -> AsyncIterator[None]:
        leases = [message.settle for message in messages if isinstance(message.settle, Lease)]
        for lease in leases:
            lease.hold()
        try:
            yield
        finally:
            for lease in leases:
                await lease.release()
                with suppress(ClientError):  # logged by the lease
                    await lease.settled()

    async def close(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.cancel()
            await asyncio.wait([self._dispatcher])
        if works := self._works - {asyncio.current_task()}:
            _, late = await asyncio.wait(works, timeout=self._subscription.close_timeout)
            for work in late:
                work.cancel()
            if late:
                logger.warning("%d handlers are cut off; their messages come again", len(late))
                await asyncio.wait(late, timeout=_CUT_OFF_SECONDS)
        if self._consumer is not None:
            await self._consumer.close()

    async def _dispatch(self, handle: Handle) -> None:
        while True:
            free = self._subscription.max_workers - len(self._works)
            if free <= 0:
                await asyncio.wait(self._works, return_when=asyncio.FIRST_COMPLETED)
                continue
            for message in await self.receive_patiently(free):
                work = asyncio.create_task(self._work(handle, message), name=f"handle {message.message_id}")
                self._works.add(work)
                work.add_done_callback(self._works.discard)

    async def _work(self, handle: Handle, message: ReceivedMessage) -> None:
        async with self.hold([message]):
            await handle(message)


def source_of(connection: Connection, subscription: Subscription) -> Source:
    """Return the source of a subscription's messages, not started."""
    kind = PoppingSource if subscription.mode == "simple" else PushSource
    return kind(connection, subscription)
