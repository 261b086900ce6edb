"""Single messages: finding them by id or key, and sending them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from dledger_client import Admin, NotFoundError, ReceivedMessage, SendResult
from dledger_remoting.properties import FAILURE_REASON, RESERVED_NAMES, START_DELIVER_TIME

from .access import Access
from .errors import MissingError, OperationError

PRODUCER_GROUP: Final = "DLEDGER_CONSOLE"
"""Group of the producers that send single messages."""

_DROPPED_PROPERTIES: Final = RESERVED_NAMES | {START_DELIVER_TIME, FAILURE_REASON}
"""Properties that client and broker set, or that had their effect when the message was first delivered."""


class MessageView(msgspec.Struct, frozen=True):
    """A message as JSON. `body` is text if it is UTF-8, else null, and then `body_base64` is there."""

    topic: str
    broker_group: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    keys: tuple[str, ...]
    tag: str | None
    properties: Mapping[str, str]
    born_timestamp_ms: int
    stored_timestamp_ms: int
    reconsume_times: int
    body: str | None
    body_base64: bytes | None = None


class UnreadableView(MessageView, frozen=True, kw_only=True):
    """A message whose body cannot be read; `body_base64` is as it is stored."""

    fault: str


def view(message: ReceivedMessage) -> MessageView:
    """Return a message as JSON shows it."""
    try:
        text: str | None = message.body.decode() if message.fault is None else None
    except UnicodeDecodeError:
        text = None
    fields = (
        message.topic,
        message.queue.broker_group,
        message.queue_id,
        message.queue_offset,
        message.message_id,
        message.offset_message_id,
        message.keys,
        message.tags,
        message.properties,
        message.born_timestamp_ms,
        message.stored_timestamp_ms,
        message.reconsume_times,
        text,
        message.body if text is None else None,
    )
    return MessageView(*fields) if message.fault is None else UnreadableView(*fields, fault=message.fault)


def unreadable(message: ReceivedMessage) -> str:
    """Return which message cannot be read, and why."""
    return (
        f"the message at offset {message.queue_offset} of {message.queue} (offset id {message.offset_message_id}, "
        f"unique key {message.message_id}) cannot be read: {message.fault}"
    )


async def by_offset_id(admin: Admin, offset_id: str) -> ReceivedMessage:
    """Return the message with an offset message id. Raises `MissingError` if there is none."""
    try:
        return await admin.message_by_id(offset_id, keep_unreadable=True)
    except NotFoundError as error:
        raise MissingError(
            f"{error.remark}; a unique key, as `consume` shows it, is looked up with --topic and --unique-key"
        ) from error


async def by_key(admin: Admin, topic: str, key: str, *, unique: bool, limit: int) -> list[ReceivedMessage]:
    """Return the newest messages with a key, or with a unique key, oldest first.

    Raises `MissingError` if there is none.
    """
    messages = await admin.messages_by_key(topic, key, unique=unique, max_messages=limit, keep_unreadable=True)
    if not messages:
        raise MissingError(f"topic {topic!r} has no message with the {'unique key' if unique else 'key'} {key!r}")
    return messages


async def what_sending_does(admin: Admin, topic: str, size: int) -> list[str]:
    """Describe what sending a message of some bytes does. Raises `MissingError` for a topic that does not exist."""
    await _require_topic(admin, topic)
    consumers = await admin.topic_consumers(topic)
    readers = f"read by {', '.join(consumers)}" if consumers else "read by no consumer group"
    return [f"a message of {size} bytes is added to topic {topic}, {readers}"]


async def send(
    access: Access,
    topic: str,
    body: bytes,
    *,
    key: str = "",
    tag: str = "",
    properties: Mapping[str, str] | None = None,
) -> SendResult:
    """Send a message, with keys that spaces separate. Raises `MissingError` for a topic that does not exist.

    A typing error must not create a topic, as a first send to it would.
    """
    async with access.admin() as admin:
        await _require_topic(admin, topic)
    async with access.producer(PRODUCER_GROUP) as producer:
        return await producer.send(topic, body, key=key.split() or None, tags=tag or None, properties=properties)


async def send_again(access: Access, offset_id: str) -> SendResult:
    """Send a copy of a message to its topic, with the same keys, tag and properties. It gets a unique key of its own.

    Raises `OperationError` if there is no such message, or its body cannot be read.
    """
    async with access.admin() as admin:
        message = await by_offset_id(admin, offset_id)
        if message.fault is not None:
            raise OperationError(f"the body of {offset_id} cannot be read: {message.fault}")
        await _require_topic(admin, message.topic)
    async with access.producer(PRODUCER_GROUP) as producer:
        return await producer.send(
            message.topic,
            message.body,
            key=message.keys or None,
            tags=message.tags,
            properties=own_properties(message),
        )


def own_properties(message: ReceivedMessage) -> dict[str, str]:
    """Return the properties that a copy has too: not those that clients and brokers set, or that had their effect."""
    return {name: value for name, value in message.properties.items() if name not in _DROPPED_PROPERTIES}


async def _require_topic(admin: Admin, topic: str) -> None:
    try:
        await admin.topic_config(topic)
    except NotFoundError as error:
        raise MissingError(error.remark, "`dledger topic list` shows those that there are") from error
