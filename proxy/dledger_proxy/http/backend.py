"""Backend of the HTTP front: all that the handlers need of a cluster.

`ClientBackend` implements it with our client's public classes. Tests implement it in memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, TypeAlias

from dledger_client import Credentials, Filter, Message, MessageQueue, QueueStatus, ReceivedMessage, SendResult

from .handles import Cursor, Receipt


class Caller(NamedTuple):
    """The sender of a request: its account, None without one, and the numeric address that it has."""

    account: Credentials | None
    host: str
    port: int


Start: TypeAlias = Literal["first", "last"] | datetime | Cursor
"""Place at which a tail begins: an end of each queue, a time, or behind the messages of an earlier tail."""


class Subscription(NamedTuple):
    """A consumer group's request for messages of a topic. `invisible_s` is the time for which they are its own."""

    group: str
    topic: str
    filter: Filter
    invisible_s: float
    from_beginning: bool


class TailRequest(NamedTuple):
    """A request to read a topic as it grows. `group` is only the name in which brokers judge the right to read."""

    topic: str
    group: str
    filter: Filter
    start: Start


class TailBatch(NamedTuple):
    """Messages that a tail has read, none after a silence, and the place behind them."""

    messages: Sequence[ReceivedMessage]
    cursor: Cursor


class BusyError(Exception):
    """The proxy has as many clients or tails as it may have. Nothing was sent; the text says what is full."""


class Backend(Protocol):
    """Calls to a cluster, each in the name of a caller. They raise `ClientError` and `BusyError`."""

    async def send(
        self, caller: Caller, topic: str, messages: Sequence[Message], *, idempotent: bool | None, timeout_s: float
    ) -> Sequence[SendResult]:
        """Store messages, and return where, in their order. `SendError.stored` has those stored before a failure."""

    async def recall(self, caller: Caller, topic: str, handle: str) -> str:
        """Recall a message that is to be delivered later, and return its id."""

    def receive(
        self, caller: Caller, subscription: Subscription, max_messages: int, wait_s: float
    ) -> AbstractAsyncContextManager[Sequence[ReceivedMessage]]:
        """Take messages, each with its check point. They go back to the group if the block ends with an error."""

    async def ack(self, caller: Caller, receipt: Receipt) -> bool:
        """Acknowledge a message. False if its invisible time was over."""

    async def hide(self, caller: Caller, receipt: Receipt, seconds: float) -> Receipt | None:
        """Hide a message for a time from now on. Returns the receipt that replaces the given one.

        None if its invisible time was over.
        """

    def tail(self, caller: Caller, request: TailRequest, ping_s: float) -> AsyncGenerator[TailBatch, None]:
        """Read a topic as it grows, without taking messages from anybody.

        The first batch has no message, only the place of the start. Then a batch comes at least every `ping_s`.
        """

    async def topics(self, caller: Caller) -> Sequence[str]:
        """Return the names of all topics."""

    async def queues(self, caller: Caller, topic: str, group: str | None) -> Sequence[QueueStatus]:
        """Return each readable queue of a topic with its offsets. `committed` is the group's, None without a group."""


def queue_name(queue: MessageQueue) -> str:
    """Return the text by which answers name a queue."""
    return f"{queue.broker_group}/{queue.queue_id}"
