"""Deliveries of a channel: messages are popped while there is room, hidden while they are worked on, and settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final, Protocol

from dledger_client import ClientClosedError, ClientError, ReceivedMessage, SimpleConsumer
from dledger_remoting.pop import MAX_POP_MESSAGES

from .cluster import Cluster
from .envelopes import Payload, decode_received, is_early

POLL_SECONDS: Final = 10.0
"""Maximum time in seconds that a pop waits. A change of the queues ends it sooner."""
HIDE_SHARE: Final = 3
"""Divisor of the visibility timeout: messages in work are hidden anew after this part of it."""
REQUEUE_SECONDS: Final = 1.0
"""Time in seconds after which a message comes again that was given back: the shortest that brokers know."""
MIN_PAUSE_SECONDS: Final = 0.2
MAX_PAUSE_SECONDS: Final = 5.0
"""Shortest and longest pause in seconds after a failed request."""
SETTLE_SECONDS: Final = 10.0
"""Time limit in seconds for acknowledgements under way when a channel closes."""

logger = logging.getLogger(__name__)


class Receiver(Protocol):
    """Taker of messages. Its methods are called on the event loop, and must not block."""

    def deliver(self, queue: str, payload: Payload) -> None:
        """Take a message of a queue."""

    def fail(self, error: ClientError) -> None:
        """Take an error that does not pass by itself."""

    def has_room(self) -> bool:
        """Return whether few messages wait to be taken. It counts if there is no limit of messages in work."""


def report_end(receiver: Receiver, text: str, task: asyncio.Task[None]) -> None:
    """Have consumers fail if a task in the background has failed for an unknown reason."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s", text, exc_info=error)
        receiver.fail(ClientError(f"{text}: {error!r}"))


class Delivery:
    """A message that was delivered and is not settled."""

    __slots__ = ("consumer", "is_lost", "is_settled", "lock", "message", "name", "queue")

    def __init__(self, queue: str, consumer: SimpleConsumer, message: ReceivedMessage, name: str) -> None:
        self.queue = queue
        self.consumer = consumer
        self.message = message
        self.name = name
        self.lock = asyncio.Lock()
        """Held by a request that may change the check point of the message."""
        self.is_settled = False
        self.is_lost = False


class Deliveries:
    """Deliveries of one channel. All methods belong to the event loop of the cluster's clients."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self._consumers: dict[tuple[str, str], SimpleConsumer] = {}
        self._sources: dict[str, list[SimpleConsumer]] = {}
        """Consumers by queue, that of the highest priority first."""
        self._unacknowledged: set[str] = set()
        """Queues whose messages are finished by being delivered."""
        self._held: dict[str, Delivery] = {}
        self._limit = 0
        self._changed = asyncio.Event()
        """Set when other queues are consumed than before, which ends a wait for messages."""
        self._has_room = asyncio.Event()
        """Set when there may be room for messages again."""
        self._last = ""
        """Queue of the last messages."""
        self._settling: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closed = False

    async def consume(self, queue: str, group: str, topics: Sequence[str], *, no_ack: bool) -> None:
        """Begin to deliver messages of a queue. `topics` are in the order of their priority, the highest first."""
        self._sources[queue] = [await self._consumer(group, topic) for topic in topics]
        (self._unacknowledged.add if no_ack else self._unacknowledged.discard)(queue)
        self._changed.set()
        self._begin()

    async def cancel(self, queue: str) -> None:
        """Deliver no more messages of a queue.

        Its consumers are closed. Otherwise their last request would still take messages, and keep them for a while.
        """
        cancelled = self._sources.pop(queue, [])
        self._changed.set()
        for key, consumer in list(self._consumers.items()):
            if consumer in cancelled:
                del self._consumers[key]
                await self._hand_over(*key, consumer)
                self._cluster.close_soon(consumer)

    async def _hand_over(self, group: str, topic: str, consumer: SimpleConsumer) -> None:
        """Have another consumer settle the messages in work of a consumer that is closed."""
        in_work = [delivery for delivery in self._held.values() if delivery.consumer is consumer]
        if in_work:
            other = await self._consumer(group, topic)
            for delivery in in_work:
                delivery.consumer = other

    def set_limit(self, limit: int) -> None:
        """Set the maximum number of messages that are delivered and not settled; 0: none."""
        self._limit = limit
        self._has_room.set()

    def look_again(self) -> None:
        """Look whether there is room now."""
        self._has_room.set()

    async def get(self, queue: str, group: str, topics: Sequence[str], *, no_ack: bool) -> Payload | None:
        """Return one message of a queue, None if there is none now."""
        self._begin()
        for topic in topics:
            consumer = await self._consumer(group, topic)
            for message in await consumer.receive(1, wait=0):
                payload = await self._accept(queue, consumer, message, no_ack=no_ack)
                if payload is not None:
                    return payload
        return None

    def acknowledge(self, tag: str) -> None:
        """Finish a message, in the background. It is repeated until the broker has answered."""
        self._settle(tag, self._acknowledge)

    def requeue(self, tag: str) -> None:
        """Give a message back, in the background. It comes again after a second, with one more delivery counted."""
        self._settle(tag, self._requeue)

    async def close(self) -> None:
        """Wait for what is being settled, give all other messages back, and close the consumers."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._settling:
            await asyncio.wait(self._settling, timeout=SETTLE_SECONDS)
        for tag in list(self._held):
            self.requeue(tag)
        if self._settling:
            await asyncio.wait(self._settling, timeout=SETTLE_SECONDS)
        for consumer in self._consumers.values():
            self._cluster.close_soon(consumer)

    # ---------------------------------------------------------------- fetching

    def _begin(self) -> None:
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._fetch()), asyncio.create_task(self._keep_hidden())]
            for task in self._tasks:
                task.add_done_callback(partial(report_end, self._receiver, "messages are not fetched any more"))

    async def _consumer(self, group: str, topic: str) -> SimpleConsumer:
        consumer = self._consumers.get((group, topic))
        if consumer is None:
            consumer = self._cluster.make_task_consumer(group, topic)
            await consumer.start()
            self._consumers[group, topic] = consumer
        return consumer

    async def _fetch(self) -> None:
        pause = MIN_PAUSE_SECONDS
        while True:
            self._changed.clear()
            self._has_room.clear()
            sources = self._sources_in_turn()
            if not sources:
                await self._changed.wait()
                continue
            room = self._room()
            if not room:
                await self._has_room.wait()
                continue
            try:
                await self._fetch_once(sources, room)
                pause = MIN_PAUSE_SECONDS
            except ClientError as error:
                if self._changed.is_set():
                    continue  # perhaps the error of a consumer that is closed
                if not error.retryable:
                    self._sources.clear()
                    self._receiver.fail(error)
                    continue
                logger.warning("no messages of %s for now: %s", ", ".join(self._sources), error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _room(self) -> int:
        """Return how many messages may be fetched now."""
        if not self._limit:
            return MAX_POP_MESSAGES if self._receiver.has_room() else 0
        return min(max(self._limit - len(self._held), 0), MAX_POP_MESSAGES)

    def _sources_in_turn(self) -> list[tuple[str, SimpleConsumer]]:
        """Return the consumers to ask, those of the queue whose turn it is first."""
        queues = list(self._sources)
        first = queues.index(self._last) + 1 if self._last in queues else 0
        return [(queue, consumer) for queue in queues[first:] + queues[:first] for consumer in self._sources[queue]]

    async def _fetch_once(self, sources: Sequence[tuple[str, SimpleConsumer]], room: int) -> None:
        """Deliver messages of the first source that has some, or wait until one has or the sources change."""
        if len(sources) > 1:
            for queue, consumer in sources:
                if messages := await consumer.receive(room, wait=0):
                    return await self._deliver(queue, consumer, messages)
        pops = {
            asyncio.create_task(consumer.receive(room, wait=POLL_SECONDS)): (queue, consumer)
            for queue, consumer in sources
        }
        change = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({*pops, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*pops, change):
                task.cancel()  # the client keeps messages of a call that was cut off for the next call
            await asyncio.gather(*pops, change, return_exceptions=True)
        failures = []
        for task, (queue, consumer) in pops.items():
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                failures.append(error)
            else:
                await self._deliver(queue, consumer, task.result())
        if failures:
            raise failures[0]
        return None

    async def _deliver(self, queue: str, consumer: SimpleConsumer, messages: Sequence[ReceivedMessage]) -> None:
        no_ack = queue in self._unacknowledged
        self._last = queue if messages else self._last
        for message in messages:
            payload = await self._accept(queue, consumer, message, no_ack=no_ack)
            if payload is None:
                continue
            if queue in self._sources:
                self._receiver.deliver(queue, payload)
            else:
                self.requeue(payload["properties"]["delivery_tag"])

    async def _accept(
        self, queue: str, consumer: SimpleConsumer, message: ReceivedMessage, *, no_ack: bool
    ) -> Payload | None:
        """Return the content of a message that is to be delivered now, else None."""
        delivery = Delivery(queue, consumer, message, message.key or message.message_id)
        try:
            payload = decode_received(message)
        except ValueError as error:
            logger.error(
                "message %s of queue %s is given back, in the end to the dead letters: %s",
                message.message_id,
                queue,
                error,
            )
            await self._requeue(delivery)
            return None
        if is_early(payload, time.time()):
            await self._send_later(delivery, payload)
            return None
        if no_ack:
            return payload if await consumer.ack(message) else None
        self._held[payload["properties"]["delivery_tag"]] = delivery
        return payload

    async def _send_later(self, delivery: Delivery, payload: Payload) -> None:
        """Send a message again that waits for longer than a broker keeps it."""
        try:
            await self._cluster.send_again(delivery.message.topic, delivery.message.body, payload)
        except ClientError as error:
            logger.warning("%s has an ETA, and could not be sent for later, it comes again: %s", delivery.name, error)
            return
        await self._acknowledge(delivery)

    # ---------------------------------------------------------------- hiding and settling

    async def _keep_hidden(self) -> None:
        """Hide messages anew while they are in work."""
        seconds = self._cluster.settings.visibility_timeout
        while True:
            await asyncio.sleep(seconds / HIDE_SHARE)
            await asyncio.gather(*(self._hide(delivery, seconds) for delivery in list(self._held.values())))

    async def _hide(self, delivery: Delivery, seconds: float) -> None:
        if delivery.is_settled or delivery.is_lost:
            return  # without the lock, which a failing acknowledgement holds for long
        async with delivery.lock:
            try:
                hidden = await delivery.consumer.change_invisible(delivery.message, seconds)
            except ClientError as error:
                logger.warning("%s of queue %s is not hidden for longer yet: %s", delivery.name, delivery.queue, error)
                return
            if hidden is None:
                delivery.is_lost = True
                logger.warning(
                    "%s of queue %s may run twice: its visibility timeout was over", delivery.name, delivery.queue
                )
            else:
                delivery.message = hidden

    def _settle(self, tag: str, settle: Callable[[Delivery], Coroutine[None, None, None]]) -> None:
        delivery = self._held.get(tag)
        if delivery is None or delivery.is_settled:
            return
        delivery.is_settled = True
        task = asyncio.create_task(self._settle_held(tag, delivery, settle))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle_held(
        self, tag: str, delivery: Delivery, settle: Callable[[Delivery], Coroutine[None, None, None]]
    ) -> None:
        try:
            async with delivery.lock:
                await settle(delivery)
        finally:
            del self._held[tag]
            self._has_room.set()

    async def _acknowledge(self, delivery: Delivery) -> None:
        pause = MIN_PAUSE_SECONDS
        while True:
            try:
                is_done = await delivery.consumer.ack(delivery.message)
            except ClientError as error:
                logger.warning("%s of queue %s is not acknowledged yet: %s", delivery.name, delivery.queue, error)
                if self._is_closed or not (error.retryable or isinstance(error, ClientClosedError)):
                    return  # else it is tried again, perhaps by another consumer
                await asyncio.sleep(pause)
                pause = min(pause * 2, MAX_PAUSE_SECONDS)
                continue
            if not is_done:
                logger.warning(
                    "%s of queue %s may run twice: it was acknowledged after its visibility timeout",
                    delivery.name,
                    delivery.queue,
                )
            return

    async def _requeue(self, delivery: Delivery) -> None:
        try:
            await delivery.consumer.change_invisible(delivery.message, REQUEUE_SECONDS)
        except ClientError as error:
            logger.warning(
                "%s of queue %s comes again only after its visibility timeout: %s", delivery.name, delivery.queue, error
            )
