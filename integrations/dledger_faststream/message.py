"""Messages as handlers get them, and the parser that makes them from received messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from faststream import StreamMessage
from faststream.message import decode_message

from dledger_client import ReceivedMessage, Reply
from dledger_remoting.properties import CORRELATION_ID, REPLY_TO_CLIENT, RESERVED_NAMES, UNIQUE_KEY

from .leases import settled

CONTENT_TYPE: Final = "content-type"
CORRELATION: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
"""Names of the properties in which FastStream's own headers travel, as with its other brokers."""

Raw: TypeAlias = ReceivedMessage | Reply
"""A message as the client gives it out: of a consumer, or the reply to a request."""
Batch: TypeAlias = tuple[ReceivedMessage, ...]


class DledgerMessage(StreamMessage[ReceivedMessage]):
    """A message of a topic. `raw_message` is the client's own message: key, tag, queue and `reconsume_times`.

    `headers` are the properties that an application has set. A settled message stays settled: only the first of `ack`,
    `nack` and `reject` counts.
    """

    async def ack(self) -> None:
        """Acknowledge the message. Raises `ClientError` in the mode "simple" if the broker did not answer in time."""
        if self.committed is None:
            self.raw_message.ack()
            await settled(self.raw_message)
        await super().ack()

    async def nack(self, *, delay_s: float | None = None) -> None:
        """Give the message back. It comes again after `delay_s` seconds, or later each time by the group's settings.

        Raises as `ack` does.
        """
        if self.committed is None:
            self.raw_message.retry(delay_s=delay_s)
            await settled(self.raw_message)
        await super().nack()

    async def reject(self) -> None:
        """Give up on the message: it goes to the dead letter topic of the group. Raises as `ack` does."""
        if self.committed is None:
            self.raw_message.reject()
            await settled(self.raw_message)
        await super().reject()


class DledgerReply(StreamMessage[Reply]):
    """The reply to a request. There is nothing to settle."""


class DledgerBatchMessage(StreamMessage[Batch]):
    """Messages that a batch subscriber handles together. Each may be settled by itself, the rest are settled together.

    A message of `raw_message` that the handler has acknowledged, given back or rejected is not settled again.
    """

    async def ack(self) -> None:
        """Acknowledge all messages. Raises as `DledgerMessage.ack` does."""
        if self.committed is None:
            for message in self.raw_message:
                message.ack()
            await self._settled()
        await super().ack()

    async def nack(self, *, delay_s: float | None = None) -> None:
        """Give all messages back. They come again one by one, after `delay_s` seconds or by the group's settings."""
        if self.committed is None:
            for message in self.raw_message:
                message.retry(delay_s=delay_s)
            await self._settled()
        await super().nack()

    async def reject(self) -> None:
        """Give up on all messages: they go to the dead letter topic of the group."""
        if self.committed is None:
            for message in self.raw_message:
                message.reject()
            await self._settled()
        await super().reject()

    async def _settled(self) -> None:
        for message in self.raw_message:
            await settled(message)


async def parse_message(raw: Raw) -> DledgerMessage | DledgerReply:
    """Return the message for handlers, or the reply for the caller of a request."""
    headers = own_properties(raw.properties)
    content_type, correlation_id = headers.get(CONTENT_TYPE), headers.get(CORRELATION)
    if isinstance(raw, Reply):
        return DledgerReply(
            raw_message=raw,
            body=raw.body,
            headers=headers,
            content_type=content_type,
            correlation_id=correlation_id,
            message_id=raw.properties.get(UNIQUE_KEY),
        )
    return DledgerMessage(
        raw_message=raw,
        body=raw.body,
        headers=headers,
        reply_to=raw.properties.get(REPLY_TO_CLIENT) or headers.get(REPLY_TO, ""),
        content_type=content_type,
        correlation_id=correlation_id or raw.properties.get(CORRELATION_ID),
        message_id=raw.message_id,
    )


async def parse_batch(raw: Batch) -> DledgerBatchMessage:
    """Return the messages of a batch for handlers. Headers and correlation id are those of its first message.

    A batch has no reply address: its messages may have many.
    """
    batch_headers = [own_properties(message.properties) for message in raw]
    headers = batch_headers[0] if batch_headers else {}
    return DledgerBatchMessage(
        raw_message=raw,
        body=[message.body for message in raw],
        headers=headers,
        batch_headers=batch_headers,
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION),
        message_id=f"{raw[0].message_id}-{raw[-1].message_id}" if raw else None,
    )


async def decode(message: StreamMessage[Any]) -> Any:  # noqa: ANN401 -- a body has any type
    """Return the body of a message by its content type: text, JSON, or bytes."""
    return decode_message(message)


async def decode_batch(message: StreamMessage[Batch]) -> Sequence[Any]:
    """Return the bodies of a batch, each by its own content type.

    FastStream knows a batch subscriber by the name of this function.
    """
    return [decode_message(await parse_message(one)) for one in message.raw_message]


def own_properties(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties that an application may have set: it may send all of them again."""
    return {name: value for name, value in properties.items() if name not in RESERVED_NAMES}


def topic_of(raw: Raw | Batch) -> str:
    """Return the topic of a message, of a batch's first message, or of the reply to a request: "reply"."""
    first = raw[0] if isinstance(raw, tuple) else raw
    return "reply" if isinstance(first, Reply) else first.topic
