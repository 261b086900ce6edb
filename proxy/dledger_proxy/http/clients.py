"""Backend of the HTTP front on our client's public classes.

A producer and an administrator are shared by all requests of an account. A `SimpleConsumer` is shared by those with the
same account, group, topic, filter and invisible time. So the messages of a caller that is gone go to the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from dledger_client import (
    Admin,
    ClientError,
    Credentials,
    InvalidArgumentError,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    QueueStatus,
    ReceivedMessage,
    SendResult,
    SimpleConsumer,
    Tls,
)
from dledger_remoting.hosts import HostAddress
from dledger_remoting.speech import SpokenCredentials

from .backend import Caller, Start, Subscription, TailBatch, TailRequest
from .handles import Cursor, HandleError, Receipt, cursor_at, receipt_of
from .pool import IDLE_S, MAX_CLIENTS, Pool

PRODUCER_GROUP: Final = "dledger_http"
TIMEOUT_S: Final = 10.0
"""Time limit of a call in seconds, beyond the time for which it waits for messages. A failover takes less."""
TAIL_BATCH: Final = 32
"""Maximum number of messages that a tail reads at once, which bounds what it holds for a client that reads slowly."""

_Client: TypeAlias = Producer | Admin | SimpleConsumer


class _Owner(NamedTuple):
    """The account of callers that may use the same client, and their address if brokers judge it, else an empty text.

    The requests of an owner are signed in the same way.
    """

    account: Credentials | None
    host: str


class _OfAccount(NamedTuple):
    """Key of a client that all requests of an account share."""

    kind: Literal["producer", "admin"]
    owner: _Owner


class _OfGroup(NamedTuple):
    """Key of a consumer. Its filter is given by its text, because filters are compared by what they say."""

    owner: _Owner
    group: str
    topic: str
    filter: str
    invisible_s: float
    from_beginning: bool


class ClientBackend:
    """Backend that asks a cluster by its name servers, as `Backend` describes. Use it as an async context manager.

    `speaker` is the proxy's own account, with the right `Speak`. With it brokers judge callers by their own addresses,
    and give none of them the rights of an administrator. Without it, brokers see the proxy's address.
    """

    def __init__(
        self,
        name_servers: str,
        *,
        tls: Tls | None = None,
        speaker: Credentials | None = None,
        timeout_s: float = TIMEOUT_S,
        idle_s: float = IDLE_S,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        self._name_servers = name_servers
        self._tls = tls
        self._speaker = speaker
        self._timeout_s = timeout_s
        self._pool: Pool[_Client] = Pool(idle_s=idle_s, max_clients=max_clients)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all clients. Messages that nobody has received go back to their groups."""
        await self._pool.close()

    @property
    def clients(self) -> int:
        """Number of clients that are open."""
        return len(self._pool)

    async def send(
        self, caller: Caller, topic: str, messages: Sequence[Message], *, idempotent: bool | None, timeout_s: float
    ) -> Sequence[SendResult]:
        """Store messages: one by itself, several in batches."""
        async with self._lend_producer(caller) as producer:
            if len(messages) == 1:
                return [await producer.send(topic, messages[0], idempotent=idempotent, timeout=timeout_s)]
            return await producer.send_batch(topic, messages, idempotent=idempotent, timeout=timeout_s)

    async def recall(self, caller: Caller, topic: str, handle: str) -> str:
        """Recall a message, whichever proxy has sent it."""
        async with self._lend_producer(caller) as producer:
            return await producer.recall(topic, handle)

    @asynccontextmanager
    async def _lend_producer(self, caller: Caller) -> AsyncIterator[Producer]:
        async with self._pool.lend(
            _OfAccount("producer", self._owner(caller)), partial(self._make_producer, caller)
        ) as producer:
            yield producer

    @asynccontextmanager
    async def receive(
        self, caller: Caller, subscription: Subscription, max_messages: int, wait_s: float
    ) -> AsyncIterator[Sequence[ReceivedMessage]]:
        """Take messages for the block. If it fails, another caller of the consumer gets them, or they are given back.

        A pop whose caller is gone may still bring messages, for seconds. Once no other caller takes them, the consumer
        is closed, which gives them back.
        """
        key = _OfGroup(
            self._owner(caller),
            subscription.group,
            subscription.topic,
            repr(subscription.filter),
            subscription.invisible_s,
            subscription.from_beginning,
        )
        async with self._pool.lend(key, partial(self._make_consumer, caller, subscription)) as consumer:
            messages: Sequence[ReceivedMessage] = ()
            try:
                messages = await consumer.receive(max_messages, wait=wait_s)
                yield messages
            except ClientError:
                raise  # of the receive: no pop is left behind
            except BaseException:
                consumer.put_back(messages)
                self._pool.retire(key)
                raise

    async def ack(self, caller: Caller, receipt: Receipt) -> bool:
        """Acknowledge a message that any proxy has given out."""
        async with self._lend_settler(caller, receipt) as consumer:
            return await consumer.ack(receipt.message)

    async def hide(self, caller: Caller, receipt: Receipt, seconds: float) -> Receipt | None:
        """Hide a message that any proxy has given out."""
        async with self._lend_settler(caller, receipt) as consumer:
            changed = await consumer.change_invisible(receipt.message, seconds)
        return None if changed is None else receipt_of(receipt.group, receipt.topic, changed)

    @asynccontextmanager
    async def _lend_settler(self, caller: Caller, receipt: Receipt) -> AsyncIterator[SimpleConsumer]:
        """Lend a consumer that ends deliveries of the receipt's group and topic. It takes no messages itself."""
        subscription = Subscription(receipt.group, receipt.topic, "*", IDLE_S, from_beginning=True)
        key = ("settler", self._owner(caller), receipt.group, receipt.topic)
        async with self._pool.lend(key, partial(self._make_consumer, caller, subscription)) as consumer:
            yield consumer

    async def tail(self, caller: Caller, request: TailRequest, ping_s: float) -> AsyncGenerator[TailBatch, None]:
        """Read all queues of a topic, also those that it gets meanwhile."""
        consumer = PullConsumer(
            self._name_servers,
            request.group,
            filter=request.filter,
            timeout=self._timeout_s,
            credentials=self._credentials(caller),
            tls=self._tls,
            keep_unreadable=True,
        )
        async with consumer:
            queues = await consumer.queues(request.topic)
            if not queues:
                raise InvalidArgumentError(f"topic {request.topic!r} has no queue that can be read")
            await consumer.assign(queues)
            await _go_to_start(consumer, request.start)
            yield TailBatch((), _cursor(request.topic, consumer.positions))
            while True:
                messages = await consumer.poll(TAIL_BATCH, ping_s)
                yield TailBatch(messages, _cursor(request.topic, consumer.positions))
                if (present := await consumer.queues(request.topic)) != queues:
                    queues = present
                    await consumer.assign(queues)

    async def topics(self, caller: Caller) -> Sequence[str]:
        """Return the names of all topics that are not the service's own."""
        async with self._lend_admin(caller) as admin:
            return await admin.topics()

    async def queues(self, caller: Caller, topic: str, group: str | None) -> Sequence[QueueStatus]:
        """Return the offsets of all readable queues, asked of their leaders."""
        async with self._lend_admin(caller) as admin:
            if group is not None:
                return await admin.offsets(group, topic)
            readable = (await admin.topic_route(topic)).readable
            return await asyncio.gather(*(_status_of(admin, queue) for queue in readable))

    @asynccontextmanager
    async def _lend_admin(self, caller: Caller) -> AsyncIterator[Admin]:
        async with self._pool.lend(
            _OfAccount("admin", self._owner(caller)), partial(self._make_admin, caller)
        ) as admin:
            yield admin

    def _owner(self, caller: Caller) -> _Owner:
        return _Owner(caller.account, "" if self._speaker is None else caller.host)

    def _credentials(self, caller: Caller) -> Credentials | None:
        if self._speaker is None:
            return caller.account
        address = HostAddress(caller.host, caller.port)
        return SpokenCredentials(self._speaker.access_key, self._speaker.secret, address, caller.account)

    def _make_producer(self, caller: Caller) -> Producer:
        return Producer(
            self._name_servers,
            group=PRODUCER_GROUP,
            timeout=self._timeout_s,
            retry_busy=False,  # the caller is told when to try again
            credentials=self._credentials(caller),
            tls=self._tls,
        )

    def _make_admin(self, caller: Caller) -> Admin:
        return Admin(self._name_servers, timeout=self._timeout_s, credentials=self._credentials(caller), tls=self._tls)

    def _make_consumer(self, caller: Caller, subscription: Subscription) -> SimpleConsumer:
        return SimpleConsumer(
            self._name_servers,
            subscription.group,
            subscription.topic,
            filter=subscription.filter,
            invisible=subscription.invisible_s,
            from_beginning=subscription.from_beginning,
            timeout=self._timeout_s,
            credentials=self._credentials(caller),
            tls=self._tls,
        )


async def _status_of(admin: Admin, queue: MessageQueue) -> QueueStatus:
    first, end = await asyncio.gather(admin.first_offset(queue), admin.end_offset(queue))
    return QueueStatus(queue, first, end, None)


async def _go_to_start(consumer: PullConsumer, start: Start) -> None:
    if start == "first":
        await consumer.seek_to_begin()
    elif start == "last":
        await consumer.seek_to_end()
    elif isinstance(start, datetime):
        await consumer.seek_to_time(int(start.timestamp() * 1000))
    elif isinstance(start, Cursor):
        new = []
        for queue in consumer.positions:
            offset = start.offset_of(queue)
            if offset is None:
                new.append(queue)
            else:
                consumer.seek(queue, offset)
        await consumer.seek_to_begin(new)


def _cursor(topic: str, positions: Mapping[MessageQueue, int]) -> Cursor:
    """Return the cursor of positions. Raises `InvalidArgumentError` for a topic with too many queues."""
    cursor = cursor_at(topic, positions)
    try:
        _ = cursor.text
    except HandleError as error:
        raise InvalidArgumentError(str(error)) from error
    return cursor
