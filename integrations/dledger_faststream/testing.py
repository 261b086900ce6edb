"""Broker without a cluster, for tests: a publication runs the handlers at once, in the task that publishes.

It filters, shares among groups, delivers again and makes dead letters as a cluster does. The differences:

* A delay is over at once, also that of a message that comes again.
* The error of a handler is raised by `publish`, as with all of FastStream's test brokers, and the message does not come
  again. One that a handler gives back by `nack` does.
* A topic has one queue, and exists. Nothing remembers idempotent sends. A `ClassFilter` is refused.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast, overload

import msgspec
from faststream.exceptions import SubscriberNotFound

from dledger_client import DeadlineError, Message, MessageQueue, ReceivedMessage, Reply, SendResult, Settlement
from dledger_client.testing import delivered, is_wanted
from dledger_remoting.properties import CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT, TTL
from dledger_remoting.topics import dead_letter_topic

from .broker import DledgerBroker
from .internals import EnterType, SubscriberUsecase, TestBroker, change_producer
from .producer import DledgerProducer
from .publisher import BatchPublisher, LogicPublisher
from .response import DledgerPublishCommand
from .subscriber import BatchSubscriber, LogicSubscriber

MAX_RECONSUME_TIMES: Final = 16
"""Number of times that a message comes again to a group without settings of its own."""

_CLIENT_ID: Final = "in-memory"


class TestDledgerBroker(TestBroker[DledgerBroker, EnterType], broker=DledgerBroker):
    """Runs brokers without a cluster; `with_real` uses the cluster, with the same mocks and assertions.

    async with TestDledgerBroker(broker) as test_broker:
        await test_broker.publish({"id": 1}, "orders")
        bill.mock.assert_called_once_with({"id": 1})
    """

    @overload
    def __init__(
        self: TestDledgerBroker[DledgerBroker],
        broker: DledgerBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: TestDledgerBroker[tuple[DledgerBroker, ...]],
        *brokers: DledgerBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(self, *brokers: DledgerBroker, with_real: bool = False, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: DledgerBroker, publisher: LogicPublisher
    ) -> tuple[SubscriberUsecase[Any], bool]:
        """Return the subscriber that records what a publisher sends, and whether the application has declared it."""
        for declared in _subscribers(self.brokers):
            if publisher.topic in declared.subscription.topics:
                return declared, True
        made = broker.subscriber(
            publisher.topic,
            group=f"test-{uuid.uuid4().hex}",
            batch=isinstance(publisher, BatchPublisher),
            persistent=False,
        )
        return made, False

    def _fake_start(self, broker: DledgerBroker, *args: object, **kwargs: object) -> None:
        broker.check_subscriptions()
        super()._fake_start(broker, *args, **kwargs)

    async def _fake_connect(self, broker: DledgerBroker, *args: object, **kwargs: object) -> None:
        """Connect to nothing."""

    @contextmanager
    def _patch_producer(self, broker: DledgerBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, InMemoryProducer(broker, self.brokers)):
            yield


class InMemoryProducer(DledgerProducer):
    """Publishes to the handlers of the brokers under test."""

    def __init__(self, broker: DledgerBroker, brokers: Sequence[DledgerBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)  # noqa: SLF001 -- FastStream's own
        self._broker = broker
        self._brokers = brokers
        self._offsets = itertools.count()
        self._replies: dict[str, Reply] = {}

    def __bool__(self) -> bool:
        return True

    async def publish(self, cmd: DledgerPublishCommand) -> SendResult | None:
        """Run the handlers of one message. Raises the error of a handler."""
        message = await self.encode(cmd)
        if cmd.asked is not None:
            reply = delivered(cmd.asked.topic, message)
            self._replies[cmd.asked.properties[CORRELATION_ID]] = Reply(reply.body, reply.properties)
            return None
        received = self._received(cmd.destination, message)
        await self._deliver([received])
        return _result_of(received)

    async def publish_batch(self, cmd: DledgerPublishCommand) -> list[SendResult]:
        """Run the handlers of several messages. Raises the error of a handler."""
        batch = [self._received(cmd.destination, message) for message in await self.encode_batch(cmd)]
        await self._deliver(batch)
        return [_result_of(received) for received in batch]

    async def request(self, cmd: DledgerPublishCommand) -> Reply:
        """Run the handlers of a request, and return the reply.

        Raises `SubscriberNotFound` without a subscriber, and `DeadlineError` without a reply.
        """
        correlation_id = uuid.uuid4().hex
        message = self._received(cmd.destination, await self.encode(cmd))
        asking = {CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: _CLIENT_ID, TTL: "0", CLUSTER: _CLIENT_ID}
        request = msgspec.structs.replace(message, properties={**message.properties, **asking})
        if not list(self._subscribers_of(request.topic)):
            raise SubscriberNotFound(f"no subscriber of topic {request.topic}")
        try:
            async with asyncio.timeout(cmd.timeout):
                await self._deliver([request])
        except TimeoutError:
            pass
        if (reply := self._replies.pop(correlation_id, None)) is not None:
            return reply
        error = DeadlineError(f"no consumer of topic {cmd.destination} replied in time")
        error.outcome = "unknown"
        raise error

    async def encode(self, cmd: DledgerPublishCommand) -> Message:
        """Return the message of a command."""
        self._follow_broker()
        return await super().encode(cmd)

    async def encode_batch(self, cmd: DledgerPublishCommand) -> list[Message]:
        """Return the messages of a command."""
        self._follow_broker()
        return await super().encode_batch(cmd)

    def _follow_broker(self) -> None:
        """Take the broker's codec and serializer, which its application may have changed."""
        config = self._broker.config
        self.serializer = config.fd_config._serializer  # noqa: SLF001 -- FastStream's own
        self.codec = config.broker_codec or self.codec

    def _received(self, topic: str, message: Message) -> ReceivedMessage:
        return delivered(topic, message, queue_offset=next(self._offsets))

    async def _deliver(self, messages: Sequence[ReceivedMessage]) -> None:
        """Give messages of one topic to one subscriber of each group, and to each broadcast subscriber."""
        for subscriber in self._subscribers_of(messages[0].queue.topic if messages else ""):
            wanted = [message for message in messages if is_wanted(message, subscriber.subscription.filter)]
            for unit in _units(subscriber, wanted):
                async for dead in _handle_until_settled(subscriber, unit):
                    await self._deliver([dead])

    def _subscribers_of(self, topic: str) -> Iterator[LogicSubscriber[Any]]:
        groups: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            subscription = subscriber.subscription
            if topic in subscription.topics and (subscription.mode == "broadcast" or subscription.group not in groups):
                groups.add(subscription.group)
                yield subscriber


def _subscribers(brokers: Sequence[DledgerBroker]) -> list[LogicSubscriber[Any]]:
    return [cast("LogicSubscriber[Any]", subscriber) for broker in brokers for subscriber in broker.subscribers]


def _units(
    subscriber: LogicSubscriber[Any], messages: Sequence[ReceivedMessage]
) -> Iterator[tuple[ReceivedMessage, ...]]:
    """Yield messages as the subscriber handles them: one by one, or in batches."""
    size = subscriber.max_messages if isinstance(subscriber, BatchSubscriber) else 1
    for start in range(0, len(messages), size):
        yield tuple(messages[start : start + size])


async def _handle_until_settled(
    subscriber: LogicSubscriber[Any], unit: tuple[ReceivedMessage, ...]
) -> AsyncIterator[ReceivedMessage]:
    """Handle messages until none is given back any more. Yields those that become dead letters."""
    subscription = subscriber.subscription
    limit = MAX_RECONSUME_TIMES if subscription.max_reconsume_times is None else subscription.max_reconsume_times
    while unit:
        settlements: dict[int, Settlement] = {}
        marked = tuple(_settled_by(message, settlements) for message in unit)
        await subscriber.process_message(marked if isinstance(subscriber, BatchSubscriber) else marked[0])
        again: list[ReceivedMessage] = []
        for message in unit:
            settlement = settlements.get(message.queue_offset, Settlement())
            if not settlement.again or subscription.mode == "broadcast":
                continue
            if settlement.give_up or message.reconsume_times >= limit:
                queue = MessageQueue(dead_letter_topic(subscription.group), message.queue.broker_group, 0)
                yield msgspec.structs.replace(message, queue=queue, settle=None)
            else:
                again.append(msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1))
        unit = tuple(again)


def _settled_by(message: ReceivedMessage, settlements: dict[int, Settlement]) -> ReceivedMessage:
    """Return the message, whose first settlement is noted in `settlements`."""

    def note(settled: ReceivedMessage, settlement: Settlement) -> None:
        settlements.setdefault(settled.queue_offset, settlement)

    return msgspec.structs.replace(message, settle=note)


def _result_of(message: ReceivedMessage) -> SendResult:
    queue = message.queue
    return SendResult(
        message.message_id,
        message.offset_message_id,
        queue.topic,
        queue.broker_group,
        queue.queue_id,
        message.queue_offset,
    )
