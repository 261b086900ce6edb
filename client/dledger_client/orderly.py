"""Consumer in order: one message of a queue at a time, by one member of the group at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Generic, Self

from dledger_remoting.filters.tags import SUBSCRIBE_ALL
from dledger_remoting.signatures import Credentials

from .arguments import checked
from .consumer import PushConsumer
from .consuming.flow import FlowReason
from .consuming.handling import Handler
from .consuming.offers import Priority
from .consuming.offsets import StartFrom
from .consuming.rebalance import Strategy, StrategyName
from .consuming.stalls import QueueStall
from .consuming.takers import CLOSE_TIMEOUT_SECONDS
from .messages import Codec, MessageQueue, ReceivedMessage, T
from .sending.tracing import DEFAULT_MAX_TRACES
from .subscriptions import Filter
from .tls import Tls


@checked
class OrderlyConsumer(Generic[T]):
    """Handles the messages of each queue in their order, while no other member of the group has the queue.

        async with OrderlyConsumer("127.0.0.1:9876", "ledgers", "accounts", handler) as consumer:
            await consumer.run_forever()

    The brokers lock each queue for one member. Messages with one ordering key are in one queue. Each is therefore
    handled when its predecessor is finished, even when members join, leave or die, or the leader changes. Up to
    `concurrency` queues are worked on at a time. A message whose handler raises is tried again in its place, after a
    pause, `max_reconsume_times` times. Then it goes to the topic `%DLQ%<group>` and its successors follow.

    A queue that moves to another member is given up when its message in work is finished and committed. If a member
    dies, its queues come to others within about a minute. A lock lasts 30 s without a broker. If a handler runs longer
    than that, another member may handle its message, too: delivery is at least once. `priority` decides which queue's
    message is next, as in `PushConsumer`. `trace` and `max_traces` are those of `Producer`.

    `codec` is that of `PushConsumer`. A message whose body does not decode fails in its place, as if its handler had
    raised.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str],
        group: str,
        subscriptions: str | Sequence[str] | Mapping[str, Filter],
        handler: Handler[T],
        *,
        filter: Filter = SUBSCRIBE_ALL,  # noqa: A002 -- as all consumers have it
        concurrency: int = 20,
        start_from: StartFrom = "first",
        strategy: StrategyName | Strategy = "average",
        max_reconsume_times: int = 16,
        priority: bool | Priority = False,
        namespace: str | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        start_timeout: float | None = 10.0,
        close_timeout: float = CLOSE_TIMEOUT_SECONDS,
        warn_after: float = 60.0,
        client_id: str | None = None,
        trace: bool | str = False,
        max_traces: int = DEFAULT_MAX_TRACES,
        codec: Codec[T] | None = None,
    ) -> None:
        self._consumer = PushConsumer(
            name_servers,
            group,
            subscriptions,
            handler,
            filter=filter,
            concurrency=concurrency,
            orderly=True,
            queue_locks=True,
            start_from=start_from,
            strategy=strategy,
            max_reconsume_times=max_reconsume_times,
            priority=priority,
            namespace=namespace,
            credentials=credentials,
            tls=tls,
            start_timeout=start_timeout,
            close_timeout=close_timeout,
            warn_after=warn_after,
            client_id=client_id,
            trace=trace,
            max_traces=max_traces,
            codec=codec,
        )

    @property
    def client_id(self) -> str:
        """The id under which brokers list this member of the group."""
        return self._consumer.client_id

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues of this member's share. It reads each once it has the lock."""
        return self._consumer.assignment

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return self._consumer.traces_dropped

    @property
    def stalled(self) -> list[QueueStall]:
        """Queues that are stalled now because no task finishes one of their messages, the longest first."""
        return self._consumer.stalled

    @property
    def stalls(self) -> int:
        """Number of stalls found since the start."""
        return self._consumer.stalls

    @property
    def flow_stops(self) -> dict[FlowReason, int]:
        """Number of times since the start that reading of a queue stopped because too much was unfinished.

        Counted for each of the reasons `count`, `bytes` and `span`, which module `flow` explains.
        """
        return self._consumer.flow_stops

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of `assignment` that are paused."""
        return self._consumer.paused

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Stop handing out messages of these queues until `resume`, as `PushConsumer.pause` does. Keep the locks."""
        self._consumer.pause(queues)

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Continue paused queues; None: all."""
        self._consumer.resume(queues)

    async def start(self) -> None:
        """Join the group and begin to read. Raises the errors of `PushConsumer.start`."""
        await self._consumer.start()

    async def close(self) -> None:
        """Finish the messages in work, for at most `close_timeout` seconds, commit, release the locks, and leave."""
        await self._consumer.close()

    async def run_forever(self) -> None:
        """Wait until the consumer is closed."""
        await self._consumer.run_forever()

    def nack(self, message: ReceivedMessage[object], *, delay_s: float | None = None) -> None:
        """Have a message tried again in its place, because it could not be processed.

        It is tried after `delay_s` seconds. Without that the pause grows, up to 10 s.
        """
        message.retry(delay_s=delay_s)

    async def commit(self) -> None:
        """Commit finished messages now instead of within 5 s. Raises `DeadlineError` if some could not be committed."""
        await self._consumer.commit()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
