"""Producer for programs without an event loop: the calls of `Producer`, blocking.

`make fix` writes this module from `producer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Generic

from dledger_remoting.signatures import Credentials

from ..blocking import Blocking, ClosedAfterUse
from ..messages import Codec, Message, MessageQueue, ReceivedMessage, T
from ..producer import ATTEMPT_TIMEOUT_SECONDS, DEFAULT_TIMEOUT_SECONDS, Producer
from ..replies import Reply
from ..results import SendResult
from ..sending.outgoing import COMPRESS_OVER_BYTES, MAX_BATCH_BYTES
from ..sending.tracing import DEFAULT_MAX_TRACES
from ..tls import Tls


class SyncProducer(ClosedAfterUse, Generic[T]):
    """A blocking `Producer`.

    with SyncProducer("127.0.0.1:9876", group="PG") as producer:
        producer.send("orders", b"body")
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str = "DEFAULT_PRODUCER",
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        attempt_timeout: float = ATTEMPT_TIMEOUT_SECONDS,
        retry_unknown: bool = True,
        retry_busy: bool = True,
        idempotent: bool = False,
        compress_over_bytes: int | None = COMPRESS_OVER_BYTES,
        max_message_bytes: int = 4 * 1024 * 1024,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        max_in_flight: int = 4096,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        codec: Codec[T] | None = None,
    ) -> None:
        """Open the blocking client with the arguments of `Producer`."""
        self._client = Producer(
            name_servers,
            group=group,
            timeout=timeout,
            attempt_timeout=attempt_timeout,
            retry_unknown=retry_unknown,
            retry_busy=retry_busy,
            idempotent=idempotent,
            compress_over_bytes=compress_over_bytes,
            max_message_bytes=max_message_bytes,
            max_batch_bytes=max_batch_bytes,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            client_id=client_id,
            trace=trace,
            max_traces=max_traces,
            codec=codec,
        )
        self._blocking = Blocking("dledger producer", self._client.start(), self._client.close)

    def close(self) -> None:
        """Wait for the sends under way, each of which has its own deadline, then leave the cluster, as
        `Producer.close` does.
        """
        self._blocking.finish(self._client.close())

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return self._client.traces_dropped

    def send(
        self,
        topic: str,
        body: T | Message[T],
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
        """Send one message and wait until a majority of its broker group has stored it, as `Producer.send` does."""
        return self._blocking.run(
            self._client.send(
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

    def send_batch(
        self,
        topic: str,
        messages: Sequence[T | Message[T]],
        *,
        ordering_key: str | None = None,
        queue: MessageQueue | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Send messages to one queue in their order, many times faster than one by one, as `Producer.send_batch`
        does.
        """
        return self._blocking.run(
            self._client.send_batch(
                topic, messages, ordering_key=ordering_key, queue=queue, idempotent=idempotent, timeout=timeout
            )
        )

    def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Recall a message that is to be delivered later, by its `SendResult.recall_handle`, as `Producer.recall`
        does.
        """
        return self._blocking.run(self._client.recall(topic, handle, timeout=timeout))

    def send_oneway(
        self,
        topic: str,
        body: T,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send one message to a broker without waiting for an answer, as `Producer.send_oneway` does."""
        self._blocking.run(
            self._client.send_oneway(topic, body, key=key, tags=tags, properties=properties, timeout=timeout)
        )

    def request(
        self,
        topic: str,
        body: T,
        *,
        key: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Send a message and wait for the reply of one of its consumers, `timeout` seconds for both, as
        `Producer.request` does.
        """
        return self._blocking.run(
            self._client.request(topic, body, key=key, tags=tags, properties=properties, timeout=timeout)
        )

    def reply(
        self,
        message: ReceivedMessage[object],
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Reply to a request, with bytes, as `Producer.reply` does."""
        self._blocking.run(self._client.reply(message, body, properties=properties, timeout=timeout))

    def queues(self, topic: str, *, timeout: float | None = None) -> tuple[MessageQueue, ...]:
        """Return the sorted queues of a topic that can be written, including queues of an absent broker group, as
        `Producer.queues` does.
        """
        return self._blocking.run(self._client.queues(topic, timeout=timeout))
