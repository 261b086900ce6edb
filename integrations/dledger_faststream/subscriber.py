"""Subscribers: the loop from a consumer of our client through FastStream's middlewares to the handlers."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic

from faststream import AckPolicy, StreamMessage
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from dledger_client import ClientClosedError, ClientError, ReceivedMessage
from dledger_remoting.properties import REPLY_TO_CLIENT

from .connections import DledgerBrokerConfig
from .internals import (
    CallsCollection,
    MsgType,
    PublisherProto,
    SubscriberSpecification,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
    TasksMixin,
    process_msg,
)
from .message import Batch, decode, decode_batch, parse_batch, parse_message
from .publisher import ReplyPublisher
from .sources import Source, source_of
from .subscriptions import Subscription, policy_of


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """Configuration of one subscriber. `batch_wait` is the time in seconds in which a batch may grow."""

    _outer_config: DledgerBrokerConfig
    subscription: Subscription
    max_messages: int = 32
    batch_wait: float = 0.1

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of this subscriber, or else that of its router or broker."""
        return policy_of(self._ack_policy, self._outer_config.ack_policy)


@dataclass(kw_only=True)
class SpecificationConfig(SubscriberSpecificationConfig):
    """Configuration of a subscriber's part of the AsyncAPI document."""

    topics: tuple[str, ...]


class Specification(SubscriberSpecification[DledgerBrokerConfig, SpecificationConfig]):
    """A subscriber's part of the AsyncAPI document: a channel for each topic."""

    @property
    def channel_labels(self) -> list[str]:
        """The topics with the prefixes of their routers."""
        return [f"{self._outer_config.prefix}{topic}" for topic in self.config.topics]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channels. AsyncAPI has no binding for RocketMQ."""
        payload = resolve_payloads(self.get_payloads())
        topics = self.channel_labels
        channels: dict[str, SubscriberSpec] = {}
        for topic in topics:
            name = self._channel_key(topic, split=len(topics) > 1)
            channels[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=Message(title=f"{name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        return channels


class LogicSubscriber(TasksMixin, Generic[MsgType]):
    """Common part of the subscribers to single messages and to batches."""

    _outer_config: DledgerBrokerConfig

    def __init__(self, config: SubscriberConfig, specification: Specification, calls: CallsCollection[MsgType]) -> None:
        super().__init__(config, specification, calls)
        self._subscription = config.subscription
        self._source: Source | None = None
        self._is_started = False

    @property
    def subscription(self) -> Subscription:
        """The topics and the consumer of this subscriber, with its routers' prefixes and its broker's time to close."""
        prefix, graceful_timeout = self._outer_config.prefix, self._outer_config.graceful_timeout
        topics = tuple(f"{prefix}{topic}" for topic in self._subscription.topics)
        return replace(self._subscription, topics=topics, close_timeout=graceful_timeout or 0.0)

    def check(self, others: Iterable[Subscription]) -> None:
        """Raise `SetupError` if this subscriber cannot run as it is declared, beside the others of its broker."""
        self.subscription.check()
        self.subscription.check_policy(self.ack_policy)
        self.subscription.check_beside(others)

    async def start(self) -> None:
        """Join the group, and begin to handle messages if there is a handler. Raises `ClientError`.

        A subscriber that is started already stays as it is.
        """
        if self._is_started:
            return
        await super().start()
        self._source = source_of(self._outer_config.connection, self.subscription)
        self._post_start()  # before the first message can come
        try:
            await self._start_source(self._source)
        except BaseException:
            self.running = False
            await self._source.close()
            raise
        self._is_started = True

    async def stop(self) -> None:
        """Wait for the messages in work as FastStream knows them. The kinds of subscribers close their sources."""
        self._is_started = False
        await super().stop()

    async def get_one(self, *, timeout: float = 5.0) -> StreamMessage[MsgType] | None:
        """Return the next message, which the caller settles; None if there is none within `timeout` seconds.

        With `AckPolicy.ACK_FIRST` it is acknowledged already. For subscribers without a handler. Raises `ClientError`.
        """
        raw = await self._next(timeout)
        return None if raw is None else await self._parsed(raw)

    async def __aiter__(self) -> AsyncIterator[StreamMessage[MsgType]]:
        """Yield messages, each of which the caller settles. For subscribers without a handler."""
        while True:
            try:
                raw = await self._next(None)
            except ClientClosedError:
                return
            if raw is not None:
                yield await self._parsed(raw)

    def get_log_context(self, message: StreamMessage[MsgType] | None) -> dict[str, str]:
        """Return what log lines say about a message."""
        return {
            "topic": self._topic_of(message),
            "group": self._subscription.group,
            "message_id": "" if message is None else message.message_id,
        }

    @abstractmethod
    async def _start_source(self, source: Source) -> None: ...

    @abstractmethod
    async def _next(self, wait: float | None) -> MsgType | None: ...

    @abstractmethod
    def _topic_of(self, message: StreamMessage[MsgType] | None) -> str: ...

    def _idle_source(self) -> Source:
        """Return the source of a subscriber without a handler."""
        assert not self.calls, "a subscriber with a handler hands out no messages: declare one without"
        assert self._source is not None, (
            "the subscriber is not started: use 'async with subscriber', or start the broker"
        )
        return self._source

    async def _parsed(self, raw: MsgType) -> StreamMessage[MsgType]:
        parser, decoder = self._get_parser_and_decoder()
        middlewares = [make(raw, context=self._outer_config.context) for make in self._broker_middlewares]
        message = await process_msg(msg=raw, middlewares=middlewares, parser=parser, decoder=decoder)
        assert message is not None, "there is a message"
        if self.ack_policy is AckPolicy.ACK_FIRST:
            await message.ack()
        return message

    def _make_response_publisher(self, message: StreamMessage[MsgType]) -> Sequence[PublisherProto]:
        raw, producer = message.raw_message, self._outer_config.producer
        if isinstance(raw, ReceivedMessage) and REPLY_TO_CLIENT in raw.properties:
            return (ReplyPublisher(producer, topic="", asked=raw),)
        return (ReplyPublisher(producer, topic=message.reply_to, asked=None),)


class SingleSubscriber(LogicSubscriber[ReceivedMessage]):
    """Handles messages one by one, up to `max_workers` of them at a time."""

    def __init__(
        self, config: SubscriberConfig, specification: Specification, calls: CallsCollection[ReceivedMessage]
    ) -> None:
        config.parser, config.decoder = parse_message, decode
        super().__init__(config, specification, calls)

    async def stop(self) -> None:
        """Finish the messages in work, for at most the broker's `graceful_timeout`, and leave the group."""
        if self._source is not None:
            await self._source.close()
        await super().stop()

    async def _start_source(self, source: Source) -> None:
        await source.start(self._handle if self.calls else None)

    async def _handle(self, message: ReceivedMessage) -> None:
        await self.consume(message)

    async def _next(self, wait: float | None) -> ReceivedMessage | None:
        messages = await self._idle_source().receive(1, wait)
        return messages[0] if messages else None

    def _topic_of(self, message: StreamMessage[ReceivedMessage] | None) -> str:
        return ",".join(self.subscription.topics) if message is None else message.raw_message.topic


class BatchSubscriber(LogicSubscriber[Batch]):
    """Handles the messages that have come as one batch, one batch after the other."""

    def __init__(self, config: SubscriberConfig, specification: Specification, calls: CallsCollection[Batch]) -> None:
        config.parser, config.decoder = parse_batch, decode_batch
        super().__init__(config, specification, calls)
        self.max_messages = config.max_messages
        self._batch_wait = config.batch_wait

    async def stop(self) -> None:
        """Finish the batch in work, for at most the broker's `graceful_timeout`, and leave the group."""
        if (caller := asyncio.current_task()) in self.tasks:  # a handler stops its own subscriber: it ends by itself
            self.tasks.remove(caller)
        await super().stop()
        if self._source is not None:
            await self._source.close()

    async def _start_source(self, source: Source) -> None:
        await source.start(None)
        if self.calls:
            self.add_task(self._handle_batches, (source,))

    async def _handle_batches(self, source: Source) -> None:
        while self.running:
            try:
                batch = await self._fill(source, await source.receive_patiently(self.max_messages))
            except ClientClosedError:
                return
            async with source.hold(batch):
                await self.consume(batch)

    async def _fill(self, source: Source, messages: list[ReceivedMessage]) -> Batch:
        """Return a batch of the messages and those that come within `batch_wait` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._batch_wait
        while len(messages) < self.max_messages and (wait := deadline - loop.time()) > 0:
            try:
                messages += await source.receive(self.max_messages - len(messages), wait)
            except ClientError:  # the next batch meets it again; these messages are here
                break
        return tuple(messages)

    async def _next(self, wait: float | None) -> Batch | None:
        source = self._idle_source()
        messages = await source.receive(self.max_messages, wait)
        return await self._fill(source, messages) if messages else None

    def _topic_of(self, message: StreamMessage[Batch] | None) -> str:
        return ",".join(self.subscription.topics) if message is None else message.raw_message[0].topic
