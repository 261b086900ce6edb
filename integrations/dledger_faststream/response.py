"""Results of handlers, and the commands that carry a publication through the middlewares to the producer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from faststream import BatchPublishCommand, PublishCommand, PublishType, Response
from faststream.types import SendableMessage

from dledger_client import Message, ReceivedMessage

from .message import CONTENT_TYPE, CORRELATION, REPLY_TO


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """Arguments of a send beside body and topic. They mean what they mean for `Message`."""

    key: str | Sequence[str] | None = None
    tags: str | None = None
    ordering_key: str | None = None
    unique_key: str | None = None
    delay_s: float | None = None
    deliver_at: datetime | int | None = None

    def over(self, others: Sending) -> Sending:
        """Return these arguments, with those of `others` where there is none.

        A delay and a time are one argument: either of them replaces both.
        """
        later = self if self.delay_s is not None or self.deliver_at is not None else others
        return Sending(
            key=others.key if self.key is None else self.key,
            tags=others.tags if self.tags is None else self.tags,
            ordering_key=others.ordering_key if self.ordering_key is None else self.ordering_key,
            unique_key=others.unique_key if self.unique_key is None else self.unique_key,
            delay_s=later.delay_s,
            deliver_at=later.deliver_at,
        )

    def message(self, body: bytes, properties: Mapping[str, str]) -> Message:
        """Return the message to send."""
        return Message(
            body,
            self.key,
            self.tags,
            properties,
            self.unique_key,
            self.delay_s,
            self.deliver_at,
            self.ordering_key,
        )


class DledgerResponse(Response):
    """The result of a handler with arguments for its publication, or one message of `publish_batch`."""

    def __init__(
        self,
        body: SendableMessage,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        key: str | Sequence[str] | None = None,
        tags: str | None = None,
        ordering_key: str | None = None,
        unique_key: str | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.sending = Sending(
            key=key,
            tags=tags,
            ordering_key=ordering_key,
            unique_key=unique_key,
            delay_s=delay_s,
            deliver_at=deliver_at,
        )

    def get_publish_key(self) -> Any | None:  # noqa: ANN401 -- as FastStream has it
        """Return the key by which the message can be found."""
        return self.sending.key

    def as_publish_command(self) -> DledgerPublishCommand:
        """Return the command that publishes the result."""
        return DledgerPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            sending=self.sending,
            _publish_type=PublishType.PUBLISH,
        )


class DledgerPublishCommand(BatchPublishCommand):
    """A publication of one message or of a batch, as middlewares see it.

    `asked` is the request that this is the reply to; such a command has no destination. `timeout` is the time limit of
    a send or request in seconds, None for that of the broker.
    """

    def __init__(
        self,
        message: object = None,
        /,
        *messages: object,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        sending: Sending | None = None,
        idempotent: bool | None = None,
        timeout: float | None = None,
        asked: ReceivedMessage | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            message,
            *messages,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.sending = sending or Sending()
        self.idempotent = idempotent
        self.timeout = timeout
        self.asked = asked

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> DledgerPublishCommand:
        """Return the command with our arguments, which that of a plain `Response` has not.

        With `batch`, a list as body is several bodies, and anything else is one.
        """
        if isinstance(cmd, DledgerPublishCommand):
            command = cmd
        else:
            command = cls(
                cmd.body,
                topic=cmd.destination,
                headers=cmd.headers,
                correlation_id=cmd.correlation_id,
                reply_to=cmd.reply_to,
                _publish_type=cmd.publish_type,
            )
        if batch and not command.extra_bodies:
            is_list = isinstance(cmd.body, Sequence) and not isinstance(cmd.body, str | bytes)
            command.batch_bodies = filled(cmd.body if is_list else [cmd.body])
        return command

    def properties(self, content_type: str | None, own: Response | None = None) -> dict[str, Any]:
        """Return the properties of a message: FastStream's headers, then those of the application.

        `own` is a message of a batch with headers and a correlation id of its own. They come before those of the batch.
        """
        properties: dict[str, Any] = {}
        if content_type:
            properties[CONTENT_TYPE] = content_type
        if correlation_id := (own and own.correlation_id) or self.correlation_id:
            properties[CORRELATION] = correlation_id
        if self.reply_to:
            properties[REPLY_TO] = self.reply_to
        return properties | self.headers | (own.headers if own else {})


def filled(bodies: Iterable[object]) -> tuple[object, ...]:
    """Return the bodies of a batch, with an empty one in place of None: FastStream leaves out a first None."""
    return tuple(b"" if body is None else body for body in bodies)


def plain_bodies(bodies: Sequence[object]) -> list[object]:
    """Return the bodies of a batch's messages, some of which may be a `Response`."""
    return [body.body if isinstance(body, Response) else body for body in bodies]
