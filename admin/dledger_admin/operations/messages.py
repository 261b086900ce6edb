"""Single messages: finding them by id, key or place, and the traces that clients wrote about them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dledger_client import Admin, NoRouteError, NotFoundError, ReceivedMessage
from dledger_remoting.traces import Trace, kind_of

from .errors import OperationError

_TRACE_HINT = "clients write traces where they are told to: trace=True, or enableMsgTrace in RocketMQ's"


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


class TraceView(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trace as JSON shows it: those of its fields that are known, with the first field of its text as `kind`."""

    kind: str
    message_id: str
    group: str = ""
    timestamp_ms: int = 0
    region: str = ""
    topic: str = ""
    tags: str = ""
    keys: str = ""
    broker: str = ""
    host: str = ""
    body_bytes: int | None = None
    cost_ms: int | None = None
    message_type: int | None = None
    offset_message_id: str = ""
    succeeded: bool | None = None
    request_id: str = ""
    reconsume_times: int | None = None
    context_code: int | None = None
    transaction_id: str = ""
    state: str = ""
    by_check: bool | None = None


def trace_view(trace: Trace) -> TraceView:
    """Return a trace as JSON shows it."""
    return msgspec.convert({"kind": kind_of(trace), **msgspec.structs.asdict(trace)}, TraceView)


async def by_offset_id(admin: Admin, offset_id: str) -> ReceivedMessage:
    """Return the message with an offset message id. Raises `OperationError` if there is none."""
    try:
        return await admin.message_by_id(offset_id, keep_unreadable=True)
    except NotFoundError as error:
        raise OperationError(
            f"{error.remark}; a unique key, as `consume` shows it, is looked up with --topic and --unique-key"
        ) from error


async def by_key(admin: Admin, topic: str, key: str, *, unique: bool, limit: int) -> list[ReceivedMessage]:
    """Return the newest messages with a key, or with a unique key, oldest first.

    Raises `OperationError` if there is none.
    """
    messages = await admin.messages_by_key(topic, key, unique=unique, max_messages=limit, keep_unreadable=True)
    if not messages:
        raise OperationError(f"topic {topic!r} has no message with the {'unique key' if unique else 'key'} {key!r}")
    return messages


async def traces(admin: Admin, message_id: str, topic: str, limit: int) -> list[Trace]:
    """Return the traces of a message in a topic of traces. Raises `OperationError` if there is none."""
    try:
        found = await admin.message_trace(message_id, topic=topic, max_messages=limit)
    except NoRouteError as error:
        raise OperationError(str(error), _TRACE_HINT) from error
    if not found:
        raise OperationError(f"topic {topic!r} has no trace of message {message_id!r}", _TRACE_HINT)
    return found
