"""Broadcasts: topics of exchanges that every reader reads from the present on, each for its own transient queues.

Transient queues are those that are exclusive, or deleted with their last reader: mailboxes of workers, queues for
replies, and queues of events. They have no topic. Each message for them is in the topic of its exchange, and the
readers keep what the bindings of their queues match. A queue that nobody reads any more thus leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from dledger_client import ClientError, PullConsumer

from .cluster import Cluster
from .deliveries import MAX_PAUSE_SECONDS, Receiver, report_end
from .envelopes import Payload, decode

POLL_SECONDS: Final = 5.0
MAX_MESSAGES: Final = 256
MAX_KEPT: Final = 10_000
"""Maximum number of messages kept for a queue that is declared and not read. The oldest are dropped."""

Matches: TypeAlias = Callable[[str], bool]
"""Test of a binding: returns True for the routing keys of messages that it wants."""

logger = logging.getLogger(__name__)


class _TransientQueue:
    """Bindings of a queue, by exchange, and the messages that came before somebody read it."""

    def __init__(self) -> None:
        self.bindings: dict[str, list[Matches]] = {}
        self.kept: deque[Payload] = deque(maxlen=MAX_KEPT)
        self.is_read = False


class Broadcasts:
    """Transient queues of one connection. All methods belong to the event loop of the cluster's clients."""

    def __init__(self, cluster: Cluster, receiver: Receiver) -> None:
        self._cluster = cluster
        self._receiver = receiver
        self._queues: dict[str, _TransientQueue] = {}
        self._readers: dict[str, tuple[PullConsumer, asyncio.Task[None]]] = {}
        self._starting = asyncio.Lock()

    async def publish(self, exchange: str, payload: Payload) -> None:
        """Send a message to all readers of an exchange."""
        topic = self._cluster.settings.names.exchange(exchange)
        await self._cluster.ensure_topic(topic, 1)
        await self._cluster.send(topic, payload)

    async def bind(self, queue: str, exchange: str, matches: Matches) -> None:
        """Bind a queue to an exchange. It gets every message that is sent after this has returned."""
        async with self._starting:
            if exchange not in self._readers:
                await self._start_reader(exchange)
        bindings = self._queues.setdefault(queue, _TransientQueue()).bindings
        bindings.setdefault(exchange, []).append(matches)

    def consume(self, queue: str) -> None:
        """Begin to deliver messages of a queue, at first those that were kept."""
        transient = self._queues[queue]
        transient.is_read = True
        while transient.kept:
            self._receiver.deliver(queue, transient.kept.popleft())

    def get(self, queue: str) -> Payload | None:
        """Return the oldest message that was kept for a queue, None without any."""
        transient = self._queues.get(queue)
        return transient.kept.popleft() if transient is not None and transient.kept else None

    def has(self, queue: str) -> bool:
        """Return whether a queue is bound here."""
        return queue in self._queues

    def size(self, queue: str) -> int:
        """Return the number of messages that are kept for a queue."""
        return len(self._queues[queue].kept) if queue in self._queues else 0

    def purge(self, queue: str) -> int:
        """Drop the messages that are kept for a queue. Returns their number."""
        count = self.size(queue)
        if count:
            self._queues[queue].kept.clear()
        return count

    async def delete(self, queue: str) -> None:
        """Forget a queue, and stop reading exchanges to which no other queue is bound."""
        transient = self._queues.pop(queue, None)
        for exchange in transient.bindings if transient is not None else ():
            if not any(exchange in other.bindings for other in self._queues.values()):
                await self._stop_reader(exchange)

    async def close(self) -> None:
        """Forget all queues."""
        self._queues.clear()
        for exchange in list(self._readers):
            await self._stop_reader(exchange)

    async def _start_reader(self, exchange: str) -> None:
        topic = self._cluster.settings.names.exchange(exchange)
        await self._cluster.ensure_topic(topic, 1)
        reader = self._cluster.make_reader()
        await reader.start()
        try:
            await reader.assign(await reader.queues(topic))
            await reader.seek_to_end()
        except BaseException:
            await reader.close()
            raise
        task = asyncio.create_task(self._read(exchange, reader))
        task.add_done_callback(partial(report_end, self._receiver, f"exchange {exchange!r} is not read any more"))
        self._readers[exchange] = reader, task

    async def _stop_reader(self, exchange: str) -> None:
        reader, task = self._readers.pop(exchange)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await reader.close()

    async def _read(self, exchange: str, reader: PullConsumer) -> None:
        while True:
            try:
                messages = await reader.poll(MAX_MESSAGES, timeout=POLL_SECONDS)
            except ClientError as error:
                if not error.retryable:
                    self._receiver.fail(error)
                    return
                logger.warning("exchange %r cannot be read for now: %s", exchange, error)
                await asyncio.sleep(MAX_PAUSE_SECONDS)
                continue
            for message in messages:
                self._hand_out(exchange, message.body)

    def _hand_out(self, exchange: str, body: bytes) -> None:
        """Give a message to each queue that wants it; each gets a copy of its own."""
        try:
            routing_key = decode(body)["properties"]["delivery_info"].get("routing_key") or ""
        except ValueError as error:
            logger.error("a message in exchange %r is dropped: %s", exchange, error)
            return
        for name, queue in self._queues.items():
            if any(matches(routing_key) for matches in queue.bindings.get(exchange, ())):
                if queue.is_read:
                    self._receiver.deliver(name, decode(body))
                else:
                    queue.kept.append(decode(body))
