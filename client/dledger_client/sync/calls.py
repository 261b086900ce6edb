"""Push consumer for programs without an event loop: the calls of `PushConsumer`, blocking.

`make fix` writes this module from `consumer.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from dledger_remoting.signatures import Credentials

from ..blocking import Blocking, ClosedAfterUse, evaluate
from ..consumer import PushConsumer
from ..consuming.flow import FlowReason, ReadAhead
from ..consuming.stalls import QueueStall
from ..messages import MessageQueue, T
from ..settings import Delivery, SettingsByName, Sharing, TimeLimits
from ..subscriptions import Filter
from ..tls import Tls


class ConsumerOptions(SettingsByName, total=False):
    """The options of `PushConsumer` that a blocking one has, too."""

    filter: Filter
    delivery: Delivery | None
    sharing: Sharing | None
    read_ahead: ReadAhead | None
    times: TimeLimits | None
    namespace: str | None
    credentials: Credentials | None
    tls: Tls | None
    client_id: str | None
    trace: bool | str
    max_traces: int


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
