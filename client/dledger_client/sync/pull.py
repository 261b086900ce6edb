"""Pull consumer for programs without an event loop: the calls of `PullConsumer`, blocking.

`make fix` writes this module from `pull.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.signatures import Credentials

from ..arguments import checked
from ..blocking import Blocking, ClosedAfterUse, evaluate
from ..messages import Codec, MessageQueue, ReceivedMessage, T
from ..pull import DEFAULT_TIMEOUT_SECONDS, PullConsumer
from ..subscriptions import Filter
from ..tls import Tls


@checked
class SyncPullConsumer(ClosedAfterUse, Generic[T]):
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
        keep_unreadable: bool = False,
        codec: Codec[T] | None = None,
    ) -> None:
        """Open the blocking client with the arguments of `PullConsumer`."""
        self._client = PullConsumer(
            name_servers,
            group,
            filter=filter,
            timeout=timeout,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            client_id=client_id,
            keep_unreadable=keep_unreadable,
            codec=codec,
        )
        self._blocking = Blocking("dledger pull consumer", self._client.start(), self._client.close)

    def close(self) -> None:
        """Close all connections; nothing is committed, as `PullConsumer.close` does."""
        self._blocking.finish(self._client.close())

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the sorted queues of a topic that can be read, including queues of an absent broker group, as
        `PullConsumer.queues` does.
        """
        return self._blocking.run(self._client.queues(topic))

    def assign(self, queues: Iterable[tuple[str, str, int]]) -> None:
        """Read exactly these queues, given as (topic, broker group, queue id), from their committed offsets on, as
        `PullConsumer.assign` does.
        """
        self._blocking.run(self._client.assign(queues))

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset that is read next in each assigned queue."""
        return self._blocking.run(evaluate(lambda: self._client.positions))

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The assigned queues that are paused."""
        return self._blocking.run(evaluate(lambda: self._client.paused))

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Have `poll` leave these queues out until `resume`; None: all present and later queues, as
        `PullConsumer.pause` does.
        """
        self._blocking.run(evaluate(lambda: self._client.pause(queues)))

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Have `poll` read paused queues again from their positions; None: all, as `PullConsumer.resume` does."""
        self._blocking.run(evaluate(lambda: self._client.resume(queues)))

    def seek(self, queue: tuple[str, str, int], offset: int) -> None:
        """Read a queue from `offset` on, as `PullConsumer.seek` does."""
        self._blocking.run(evaluate(lambda: self._client.seek(queue, offset)))

    def seek_to_time(self, timestamp_ms: int, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read from the first message stored at or after a time in ms since 1970; all assigned queues by default, as
        `PullConsumer.seek_to_time` does.
        """
        self._blocking.run(self._client.seek_to_time(timestamp_ms, queues))

    def seek_to_begin(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read from the first kept message; all assigned queues by default, as `PullConsumer.seek_to_begin` does."""
        self._blocking.run(self._client.seek_to_begin(queues))

    def seek_to_end(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Read only what comes from now on; all assigned queues by default, as `PullConsumer.seek_to_end` does."""
        self._blocking.run(self._client.seek_to_end(queues))

    def poll(self, max_messages: int = 32, timeout: float = 1.0) -> list[ReceivedMessage[T]]:
        """Return up to `max_messages` messages of the assigned queues, those of one queue in order, as
        `PullConsumer.poll` does.
        """
        return self._blocking.run(self._client.poll(max_messages, timeout), undo=self._client._put_back)  # noqa: SLF001 -- its blocking form

    def commit(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Commit the positions of these queues for the group; of all assigned queues by default, as
        `PullConsumer.commit` does.
        """
        self._blocking.run(self._client.commit(queues))

    def committed(self, queue: tuple[str, str, int]) -> int | None:
        """Return the offset that the group has committed for a queue, None before its first commit, as
        `PullConsumer.committed` does.
        """
        return self._blocking.run(self._client.committed(queue))
