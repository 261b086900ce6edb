"""Taking messages one by one for programs without an event loop: the calls of `SimpleConsumer`, blocking."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.pop import MAX_POP_MESSAGES
from dledger_remoting.signatures import Credentials

from .arguments import checked
from .blocking import Blocking, ClosedAfterUse
from .messages import ReceivedMessage
from .simple import DEFAULT_INVISIBLE_SECONDS, DEFAULT_TIMEOUT_SECONDS, SimpleConsumer
from .subscriptions import Filter
from .tls import Tls
from .tracing import DEFAULT_MAX_TRACES


@checked
class SyncSimpleConsumer(ClosedAfterUse):
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
    ) -> None:
        """See `SimpleConsumer`."""
        self._consumer = SimpleConsumer(
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
        )
        self._blocking = Blocking("dledger simple consumer", self._consumer.start())

    def close(self) -> None:
        """See `SimpleConsumer.close`."""
        self._blocking.finish(self._consumer.close())

    @property
    def traces_dropped(self) -> int:
        """See `Producer.traces_dropped`."""
        return self._consumer.traces_dropped

    def receive(self, max_messages: int = MAX_POP_MESSAGES, *, wait: float = 10.0) -> list[ReceivedMessage]:
        """See `SimpleConsumer.receive`."""
        return self._blocking.run(self._consumer.receive(max_messages, wait=wait))

    def ack(self, message: ReceivedMessage) -> bool:
        """See `SimpleConsumer.ack`."""
        return self._blocking.run(self._consumer.ack(message))

    def change_invisible(self, message: ReceivedMessage, seconds: float) -> ReceivedMessage | None:
        """See `SimpleConsumer.change_invisible`."""
        return self._blocking.run(self._consumer.change_invisible(message, seconds))
