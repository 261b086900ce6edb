"""The client for programs without an event loop: the same calls, blocking.

Each object runs its own event loop in a thread of its own, so that heartbeats and long polls go on while the program is
busy. Methods may be called from any thread, `close` from a signal handler too. A process that is forked has no such
threads: make an object in each process. Arguments, results and errors are those of the asynchronous classes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from dledger_remoting.signatures import Credentials

from .arguments import check
from .blocking import Blocking, ClosedAfterUse, evaluate
from .consumer import PushConsumer
from .errors import ClientClosedError
from .flow import FlowReason
from .messages import Message, MessageQueue, ReceivedMessage
from .offers import Priority
from .offsets import StartFrom
from .producer import Producer
from .rebalance import Strategy, StrategyName
from .replies import Reply
from .results import SendResult
from .stalls import QueueStall
from .subscriptions import Filter
from .tls import Tls

_PREFETCH: int = 32


class ProducerOptions(TypedDict, total=False):
    """The options of `Producer`."""

    group: str
    timeout: float
    attempt_timeout: float
    retry_unknown: bool
    idempotent: bool
    compress_over_bytes: int | None
    max_message_bytes: int
    max_batch_bytes: int
    max_in_flight: int
    max_in_flight_bytes: int
    namespace: str | None
    credentials: Credentials | None
    tls: Tls | None
    client_id: str | None
    trace: bool | str
    max_traces: int


class ConsumerOptions(TypedDict, total=False):
    """The options of `PushConsumer` that make sense for an iterator."""

    filter: Filter
    orderly: bool
    queue_locks: bool
    start_from: StartFrom
    strategy: StrategyName | Strategy
    broadcast: bool
    offset_file: Path | None
    max_reconsume_times: int | None
    pull_batch_size: int
    max_outstanding: int
    max_outstanding_bytes: int
    max_span: int | None
    max_topic_outstanding: int | None
    max_topic_bytes: int | None
    priority: bool | Priority
    namespace: str | None
    credentials: Credentials | None
    tls: Tls | None
    start_timeout: float | None
    warn_after: float
    client_id: str | None
    trace: bool | str
    max_traces: int


class SyncProducer(ClosedAfterUse):
    """A blocking `Producer`.

    with SyncProducer("127.0.0.1:9876", group="PG") as producer:
        producer.send("orders", b"body")
    """

    def __init__(self, name_servers: str | Sequence[str], **options: Unpack[ProducerOptions]) -> None:
        self._producer = Producer(name_servers, **options)
        self._blocking = Blocking("dledger producer", self._producer.start())

    def close(self) -> None:
        """See `Producer.close`."""
        self._blocking.finish(self._producer.close())

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
        return self._producer.traces_dropped

    def send(
        self,
        topic: str,
        body: bytes | Message,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        unique_key: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """See `Producer.send`."""
        return self._blocking.run(
            self._producer.send(
                topic,
                body,
                key=key,
                tags=tags,
                properties=properties,
                ordering_key=ordering_key,
                queue=queue,
                unique_key=unique_key,
                delay_s=delay_s,
                deliver_at=deliver_at,
                idempotent=idempotent,
                timeout=timeout,
            )
        )

    def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """See `Producer.recall`."""
        return self._blocking.run(self._producer.recall(topic, handle, timeout=timeout))

    def send_batch(
        self,
        topic: str,
        messages: Sequence[Message | bytes],
        *,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """See `Producer.send_batch`."""
        return self._blocking.run(
            self._producer.send_batch(
                topic, messages, ordering_key=ordering_key, queue=queue, idempotent=idempotent, timeout=timeout
            )
        )

    def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """See `Producer.send_oneway`."""
        self._blocking.run(
            self._producer.send_oneway(topic, body, key=key, tags=tags, properties=properties, timeout=timeout)
        )

    def request(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """See `Producer.request`."""
        return self._blocking.run(
            self._producer.request(topic, body, key=key, tags=tags, properties=properties, timeout=timeout)
        )

    def reply(
        self,
        message: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """See `Producer.reply`."""
        self._blocking.run(self._producer.reply(message, body, properties=properties, timeout=timeout))

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """See `Producer.queues`."""
        return self._blocking.run(self._producer.queues(topic, timeout=timeout))


class SyncConsumer(ClosedAfterUse):
    """A blocking `PushConsumer`, to iterate over.

    with SyncConsumer("127.0.0.1:9876", "CG", "orders") as consumer:
        for message in consumer:
            print(message.body)

    A message is finished by its taker, or it is not acknowledged: the thread that took it finishes it by asking for the
    next one, unless `auto_ack` is False; anybody finishes it by `message.ack()` or `message.retry()`. Neither an error
    nor the end of the `with` block finishes one: acknowledge the last before `break`. Several threads may iterate.

    The iteration takes up to 32 messages at a time from the event loop: all of them count as in work, and are delivered
    to another member too if their queue moves to it; with `priority` it takes one. It ends when another thread calls
    `close`.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        subscriptions: str | Sequence[str] | Mapping[str, Filter],
        *,
        auto_ack: bool = True,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        check("auto_ack", auto_ack, bool)
        self._consumer = PushConsumer(name_servers, group, subscriptions, **options)
        self._auto_ack = auto_ack
        self._prefetch = 1 if options.get("priority") else _PREFETCH
        self._received: deque[ReceivedMessage] = deque()
        self._receiving = threading.Lock()
        self._of_thread = threading.local()
        self._closed = False
        self._blocking = Blocking("dledger consumer", self._consumer.start())

    def close(self) -> None:
        """See `PushConsumer.close`. What was received and not acknowledged will be delivered again."""
        self._closed = True
        self._blocking.finish(self._consumer.close())

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self

    def __next__(self) -> ReceivedMessage:
        taken: ReceivedMessage | None = getattr(self._of_thread, "taken", None)
        self._of_thread.taken = None
        if taken is not None and self._auto_ack:
            taken.ack()
        with self._receiving:
            message = self._next()
        self._of_thread.taken = message
        return message

    def _next(self) -> ReceivedMessage:
        """The next message, by one thread at a time. Raises `StopIteration` once the consumer is closed."""
        while not self._received and not self._is_closed():
            try:
                self._blocking.run(self._read_ahead())
            except ClientClosedError:
                if not self._is_closed():
                    raise
        if self._is_closed():
            raise StopIteration
        return self._received.popleft()

    async def _read_ahead(self) -> None:
        """On the loop, so that what has been taken is there for the next call if this thread is interrupted."""
        messages = await self._consumer.receive(self._prefetch, timeout=1.0)
        self._received.extend(self._for_any_thread(message) for message in messages)

    def _is_closed(self) -> bool:
        """Whether some thread has called `close`, as of now."""
        return self._closed

    @property
    def stalled(self) -> list[QueueStall]:
        """See `PushConsumer.stalled`. What the iteration has taken ahead counts as taken."""
        return self._blocking.run(evaluate(lambda: self._consumer.stalled))

    @property
    def stalls(self) -> int:
        """See `PushConsumer.stalls`."""
        return self._consumer.stalls

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
        return self._consumer.traces_dropped

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """See `PushConsumer.assignment`."""
        return self._blocking.run(evaluate(lambda: self._consumer.assignment))

    @property
    def flow_stops(self) -> dict[FlowReason, int]:
        """See `PushConsumer.flow_stops`."""
        return self._consumer.flow_stops

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """See `PushConsumer.paused`."""
        return self._blocking.run(evaluate(lambda: self._consumer.paused))

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PushConsumer.pause`. What the iteration has taken ahead is still handed out."""
        self._blocking.run(evaluate(lambda: self._consumer.pause(queues)))

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PushConsumer.resume`."""
        self._blocking.run(evaluate(lambda: self._consumer.resume(queues)))

    def receive(self, max_messages: int = 32, timeout: float | None = None) -> list[ReceivedMessage]:
        """See `PushConsumer.receive`: these messages must be acknowledged one by one."""
        messages = self._blocking.run(self._consumer.receive(max_messages, timeout))
        return [self._for_any_thread(message) for message in messages]

    def nack(self, message: ReceivedMessage, *, delay_s: float | None = None) -> None:
        """See `PushConsumer.nack`."""
        check("message", message, ReceivedMessage)
        message.retry(delay_s=delay_s)

    def commit(self) -> None:
        """See `PushConsumer.commit`."""
        self._blocking.run(self._consumer.commit())

    def _for_any_thread(self, original: ReceivedMessage) -> ReceivedMessage:
        return msgspec.structs.replace(
            original, settle=lambda message, settlement: self._blocking.settle(message, settlement, original)
        )
