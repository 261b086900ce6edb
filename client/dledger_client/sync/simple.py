"""Simple consumer for programs without an event loop: the calls of `SimpleConsumer`, blocking.

`make fix` writes this module from `simple.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.pop import MAX_POP_MESSAGES
from dledger_remoting.signatures import Credentials

from ..arguments import checked
from ..blocking import Blocking, ClosedAfterUse
from ..messages import Codec, ReceivedMessage, T
from ..sending.tracing import DEFAULT_MAX_TRACES
from ..simple import DEFAULT_INVISIBLE_SECONDS, DEFAULT_TIMEOUT_SECONDS, SimpleConsumer
from ..subscriptions import Filter
from ..tls import Tls


@checked
class SyncSimpleConsumer(ClosedAfterUse, Generic[T]):
    """A blocking `SimpleConsumer`.

    with SyncSimpleConsumer("127.0.0.1:9876", "workers", "jobs", invisible=60) as consumer:
        for message in consumer.receive(10):
            work(message.body)
            consumer.ack(message)
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        topic: str,
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        invisible: float = DEFAULT_INVISIBLE_SECONDS,
        from_beginning: bool = True,
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        codec: Codec[T] | None = None,
    ) -> None:
        """Open the blocking client with the arguments of `SimpleConsumer`."""
        self._client = SimpleConsumer(
            name_servers,
            group,
            topic,
            filter=filter,
            invisible=invisible,
            from_beginning=from_beginning,
            timeout=timeout,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            client_id=client_id,
            trace=trace,
            max_traces=max_traces,
            codec=codec,
        )
        self._blocking = Blocking("dledger simple consumer", self._client.start(), self._client.close)

    def close(self) -> None:
        """Close all connections, as `SimpleConsumer.close` does."""
        self._blocking.finish(self._client.close())

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return self._client.traces_dropped

    def receive(self, max_messages: int = MAX_POP_MESSAGES, *, wait: float = 10.0) -> list[ReceivedMessage[T]]:
        """Take up to `max_messages` messages, 1 to 32, as `SimpleConsumer.receive` does."""
        return self._blocking.run(self._client.receive(max_messages, wait=wait), undo=self._client.put_back)

    def ack(self, message: ReceivedMessage[object]) -> bool:
        """Acknowledge the message, as `SimpleConsumer.ack` does."""
        return self._blocking.run(self._client.ack(message))

    def reject(self, message: ReceivedMessage[object], *, reason: str | None = None) -> bool:
        """Give up on the message: it becomes a dead letter of the group, and is acknowledged, as
        `SimpleConsumer.reject` does.
        """
        return self._blocking.run(self._client.reject(message, reason=reason))

    def change_invisible(
        self, message: ReceivedMessage[T], seconds: float, *, reason: str | None = None
    ) -> ReceivedMessage[T] | None:
        """Hide the message for `seconds` from now on, 1 to 43,200, as `SimpleConsumer.change_invisible` does."""
        return self._blocking.run(self._client.change_invisible(message, seconds, reason=reason))
