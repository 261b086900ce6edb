"""Publishers: `@broker.publisher(...)` for the results of handlers, and `publisher.publish(...)` for anything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from faststream import PublishCommand, PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec
from faststream.types import PublisherMiddleware, SendableMessage

from dledger_client import ReceivedMessage, SendResult

from .connections import DledgerBrokerConfig
from .internals import (
    FakePublisher,
    ProducerProto,
    PublisherSpecification,
    PublisherSpecificationConfig,
    PublisherUsecase,
    PublisherUsecaseConfig,
)
from .message import DledgerReply
from .response import DledgerPublishCommand, DledgerResponse, Sending, filled


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """Configuration of one publisher. `sending` are the arguments that a publication does not give itself."""

    _outer_config: DledgerBrokerConfig
    topic: str
    sending: Sending = field(default_factory=Sending)
    headers: dict[str, Any] = field(default_factory=dict)
    reply_to: str = ""


@dataclass(kw_only=True)
class SpecificationConfig(PublisherSpecificationConfig):
    """Configuration of a publisher's part of the AsyncAPI document."""

    topic: str


class Specification(PublisherSpecification[Any, Any]):
    """A publisher's part of the AsyncAPI document."""

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Name of the channel."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel. AsyncAPI has no binding for RocketMQ."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None),
                bindings=None,
            )
        }


class LogicPublisher(PublisherUsecase):
    """Common part of the publishers of single messages and of batches."""

    _outer_config: DledgerBrokerConfig

    def __init__(self, config: PublisherConfig, specification: Specification) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self.sending = config.sending
        self.headers = config.headers
        self.reply_to = config.reply_to

    @property
    def topic(self) -> str:
        """The topic with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self._topic}"

    def _complete(self, cmd: DledgerPublishCommand) -> DledgerPublishCommand:
        """Return the command of a handler's result with the arguments of this publisher where it has none."""
        cmd.destination = self.topic
        cmd.add_headers(self.headers, override=False)
        cmd.reply_to = cmd.reply_to or self.reply_to
        cmd.sending = cmd.sending.over(self.sending)
        return cmd

    def _command(
        self,
        *messages: object,
        topic: str,
        sending: Sending,
        headers: dict[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        idempotent: bool | None,
        timeout: float | None,
        publish_type: PublishType,
    ) -> DledgerPublishCommand:
        return DledgerPublishCommand(
            *messages,
            topic=topic or self.topic,
            headers=self.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to,
            sending=sending.over(self.sending),
            idempotent=idempotent,
            timeout=timeout,
            _publish_type=publish_type,
        )


class DefaultPublisher(LogicPublisher):
    """Publishes single messages to its topic."""

    async def publish(
        self,
        message: SendableMessage | DledgerResponse = None,
        topic: str = "",
        *,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        ordering_key: str | None = None,
        unique_key: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Publish a message, as `DledgerBroker.publish` does. Arguments replace those of the publisher."""
        sending = Sending(
            key=key, tags=tags, ordering_key=ordering_key, unique_key=unique_key, delay_s=delay_s, deliver_at=deliver_at
        )
        cmd = self._command(
            message,
            topic=topic,
            sending=sending,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            idempotent=idempotent,
            timeout=timeout,
            publish_type=PublishType.PUBLISH,
        )
        result: SendResult = await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())
        return result

    async def request(
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = None,
    ) -> DledgerReply:
        """Publish a message and return the reply to it, as `DledgerBroker.request` does."""
        cmd = self._command(
            message,
            topic=topic,
            sending=Sending(key=key, tags=tags),
            headers=headers,
            correlation_id=correlation_id,
            reply_to="",
            idempotent=None,
            timeout=timeout,
            publish_type=PublishType.REQUEST,
        )
        reply: DledgerReply = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """Publish the result of a handler."""
        await self._basic_publish(
            self._complete(DledgerPublishCommand.from_cmd(cmd)),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )


class BatchPublisher(LogicPublisher):
    """Publishes several messages at once. A handler's list is a batch, and any other result a batch of one."""

    async def publish(
        self,
        *messages: SendableMessage | DledgerResponse,
        topic: str = "",
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        headers: dict[str, str] | None = None,
        ordering_key: str | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        idempotent: bool | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """Publish messages in their order, as `DledgerBroker.publish_batch` does."""
        cmd = self._command(
            *filled(messages),
            topic=topic,
            sending=Sending(key=key, tags=tags, ordering_key=ordering_key),
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            idempotent=idempotent,
            timeout=timeout,
            publish_type=PublishType.PUBLISH,
        )
        results: list[SendResult] = await self._basic_publish_batch(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        )
        return results

    async def request(self, *_: object, **__: object) -> DledgerReply:
        """Refuse: a request is a single message."""
        raise NotImplementedError("a batch publisher cannot request: use broker.request, or a publisher without batch")

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """Publish the result of a handler."""
        await self._basic_publish_batch(
            self._complete(DledgerPublishCommand.from_cmd(cmd, batch=True)),
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )


class ReplyPublisher(FakePublisher):
    """Publishes a handler's result to the topic that the message names, or replies to the request that it is."""

    def __init__(
        self, producer: ProducerProto[DledgerPublishCommand], *, topic: str, asked: ReceivedMessage | None
    ) -> None:
        super().__init__(producer=producer)
        self._topic = topic
        self._asked = asked

    def patch_command(self, cmd: PublishCommand) -> DledgerPublishCommand:
        """Return the command with its destination."""
        command = DledgerPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._topic
        command.asked = self._asked
        return command
