"""Push consumer for programs without an event loop: the calls of `PushConsumer`, blocking.

`make fix` writes this module from `consumer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypedDict

from dledger_remoting.signatures import Credentials

from ..blocking import Blocking, ClosedAfterUse, evaluate
from ..consumer import PushConsumer
from ..consuming.flow import FlowReason
from ..consuming.offers import Priority
from ..consuming.offsets import StartFrom
from ..consuming.rebalance import Strategy, StrategyName
from ..consuming.stalls import QueueStall
from ..messages import MessageQueue, T
from ..subscriptions import Filter
from ..tls import Tls


class ConsumerOptions(TypedDict, total=False):
    """The options of `PushConsumer` that a blocking one has, too."""

    filter: Filter
    orderly: bool
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
    close_timeout: float
    warn_after: float
    client_id: str | None
    queue_locks: bool
    trace: bool | str
    max_traces: int
    keep_unreadable: bool


class PushConsumerCalls(ClosedAfterUse, Generic[T]):
    """The calls of a blocking `PushConsumer` that need nothing but its event loop."""

    _client: PushConsumer[T]
    _blocking: Blocking

    @property
    def client_id(self) -> str:
        """The id under which brokers list this member of the group."""
        return self._client.client_id

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that this member reads now."""
        return self._blocking.run(evaluate(lambda: self._client.assignment))

    @property
    def stalled(self) -> list[QueueStall]:
        """Queues that are stalled now because no task takes or finishes one of their messages, the longest first."""
        return self._blocking.run(evaluate(lambda: self._client.stalled))

    @property
    def stalls(self) -> int:
        """Number of stalls found since the start."""
        return self._client.stalls

    @property
    def traces_dropped(self) -> int:
        """Number of traces that did not fit or could not be sent."""
        return self._client.traces_dropped

    @property
    def flow_stops(self) -> dict[FlowReason, int]:
        """Number of times since the start that reading of a queue stopped because too much was unfinished."""
        return self._client.flow_stops

    @property
    def paused(self) -> frozenset[MessageQueue]:
        """The queues of `assignment` that are paused."""
        return self._blocking.run(evaluate(lambda: self._client.paused))

    def pause(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Stop reading these queues and handing out their messages until `resume`; None: all queues, as
        `PushConsumer.pause` does.
        """
        self._blocking.run(evaluate(lambda: self._client.pause(queues)))

    def resume(self, queues: Iterable[tuple[str, str, int]] | None = None) -> None:
        """Continue paused queues; None: all, as `PushConsumer.resume` does."""
        self._blocking.run(evaluate(lambda: self._client.resume(queues)))

    def commit(self) -> None:
        """Commit acknowledged messages now instead of within 5 s, as `PushConsumer.commit` does."""
        self._blocking.run(self._client.commit())
