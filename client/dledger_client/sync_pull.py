"""Reading queues at one's own pace for programs without an event loop: the calls of `PullConsumer`, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.signatures import Credentials

from .arguments import checked
from .blocking import Blocking, ClosedAfterUse, evaluate
from .messages import MessageQueue, ReceivedMessage
from .pull import DEFAULT_TIMEOUT_SECONDS, PullConsumer
from .subscriptions import Filter
from .tls import Tls


@checked
class SyncPullConsumer(ClosedAfterUse):
    """A blocking `PullConsumer`.

    with SyncPullConsumer("127.0.0.1:9876", "CG") as consumer:
        consumer.assign(consumer.queues("orders"))
        for message in consumer.poll(100, timeout=1.0):
            print(message.body)
        consumer.commit()
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str = "DEFAULT_CONSUMER",
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        timeout: float = DEFAULT_TIMEOUT_SECONDS,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        client_id: str | None = None,
    ) -> None:
        """See `PullConsumer`."""
        self._consumer = PullConsumer(
            name_servers,
            group,
            filter=filter,
            timeout=timeout,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            client_id=client_id,
        )
        self._blocking = Blocking("dledger pull consumer", self._consumer.start())

    def close(self) -> None:
        """See `PullConsumer.close`."""
        self._blocking.finish(self._consumer.close())

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """See `PullConsumer.queues`."""
        return self._blocking.run(self._consumer.queues(topic))

    def assign(self, queues: Iterable[tuple[str, str, int]]) -> None:
        """See `PullConsumer.assign`."""
        self._blocking.run(self._consumer.assign(queues))

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """See `PullConsumer.positions`."""
        return self._blocking.run(evaluate(lambda: self._consumer.positions))

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """See `PullConsumer.paused`."""
        return self._blocking.run(evaluate(lambda: self._consumer.paused))

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PullConsumer.pause`."""
        self._blocking.run(evaluate(lambda: self._consumer.pause(queues)))

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PullConsumer.resume`."""
        self._blocking.run(evaluate(lambda: self._consumer.resume(queues)))

    def seek(self, queue: tuple[str, str, int], offset: int) -> None:
        """See `PullConsumer.seek`."""
        self._blocking.run(evaluate(lambda: self._consumer.seek(queue, offset)))

    def seek_to_time(self, timestamp_ms: int, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PullConsumer.seek_to_time`."""
        self._blocking.run(self._consumer.seek_to_time(timestamp_ms, queues))

    def seek_to_begin(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PullConsumer.seek_to_begin`."""
        self._blocking.run(self._consumer.seek_to_begin(queues))

    def seek_to_end(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PullConsumer.seek_to_end`."""
        self._blocking.run(self._consumer.seek_to_end(queues))

    def poll(self, max_messages: int = 32, timeout: float = 1.0) -> list[ReceivedMessage]:
        """See `PullConsumer.poll`."""
        return self._blocking.run(self._consumer.poll(max_messages, timeout), undo=self._read_again)

    def commit(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """See `PullConsumer.commit`."""
        self._blocking.run(self._consumer.commit(queues))

    def committed(self, queue: tuple[str, str, int]) -> int | None:
        """See `PullConsumer.committed`."""
        return self._blocking.run(self._consumer.committed(queue))

    def _read_again(self, messages: list[ReceivedMessage]) -> None:
        """Move the positions back to messages that the caller of `poll` has not got: a commit would pass over them."""
        for message in reversed(messages):
            if message.queue in self._consumer.positions:
                self._consumer.seek(message.queue, message.queue_offset)
