"""Encoder of messages that gRPC clients send: checks, and the form that brokers store.

The checks and their codes are those of RocketMQ 5.3.3's proxy, except for these:

- A body in GZIP is stored decompressed. Remoting clients take all compressed bodies for ZLIB.
- A message of several kinds, or of another kind than it says, is refused with 40014.
- Priorities and lite topics are refused with 50100.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from dledger_client.sending.outgoing import MAX_BATCH_BYTES
from dledger_client.sending.wire import Outgoing
from dledger_remoting import properties as names
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.properties import RESERVED_NAMES, format_properties
from dledger_remoting.record import SYS_TRANSACTION_PREPARED

from .answers import Refusal
from .callers import Caller, topic_name
from .definition import messaging_pb2 as pb

MAX_USER_PROPERTIES: Final = 128
"""Maximum number of a message's own properties."""
MAX_USER_PROPERTIES_BYTES: Final = 16 << 10
"""Maximum size in bytes of a message's own properties, tag and keys."""
MAX_MESSAGE_GROUP_BYTES: Final = 64
MAX_MESSAGE_ID_CHARS: Final = 255
MAX_MESSAGES: Final = 1_024
"""Maximum number of messages of one request."""
MAX_RECOVERY_S: Final = 3_600
"""Maximum time in seconds for which a transaction is left to its producer."""
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_HOST: Final = "__BORNHOST"
_GZIP: Final = 16 + zlib.MAX_WBITS


def kind_of(message: pb.Message) -> pb.MessageType:
    """Return the kind of a message, by its properties. Raises `Refusal` if it has several, or says another one."""
    system = message.system_properties
    if system.HasField("lite_topic") or system.HasField("priority") or system.message_type in (pb.LITE, pb.PRIORITY):
        raise Refusal(pb.NOT_IMPLEMENTED, "there are no lite topics and no priorities here: send it without")
    kinds: list[pb.MessageType] = []
    if system.message_type == pb.TRANSACTION:
        kinds.append(pb.TRANSACTION)
    if system.HasField("delivery_timestamp"):
        kinds.append(pb.DELAY)
    if system.message_group:
        kinds.append(pb.FIFO)
    shown = ", ".join(pb.MessageType.Name(kind) for kind in kinds) or "NORMAL"
    kind = kinds[0] if kinds else pb.NORMAL
    if len(kinds) > 1 or system.message_type not in (kind, pb.MESSAGE_TYPE_UNSPECIFIED):
        said = pb.MessageType.Name(system.message_type)
        raise Refusal(
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is {shown} by its properties, and says {said}: one kind",
        )
    return kind


class Encoder:
    """Encodes messages, whose bodies have at most `max_body_bytes`.

    With `speaks`, they are sent in the name of their client. That costs time, and means nothing without access control.
    """

    def __init__(self, max_body_bytes: int, *, speaks: bool) -> None:
        self._max_body_bytes = max_body_bytes
        self._speaks = speaks

    def encode(self, caller: Caller, topic: str, message: pb.Message, kind: pb.MessageType) -> Outgoing:
        """Return one message in the form of the wire. Raises `Refusal`."""
        body, text = self._checked(caller, topic, message, kind)
        is_half = kind == pb.TRANSACTION
        return Outgoing(
            topic,
            body,
            text,
            SYS_TRANSACTION_PREPARED if is_half else 0,
            _born_ms(message),
            (message.system_properties.message_id,),
            idempotent=not is_half,
            fields=caller.ext if self._speaks else None,
        )

    def encode_all(self, caller: Caller, topic: str, messages: Sequence[pb.Message]) -> Outgoing:
        """Return several ordinary messages as one request. Raises `Refusal`."""
        parts: list[BatchMessage] = []
        size = 0
        for message in messages:
            body, text = self._checked(caller, topic, message, pb.NORMAL)
            parts.append(BatchMessage(0, body, text.encode()))
            size += len(body) + len(text)
        if size > MAX_BATCH_BYTES:
            raise Refusal(
                pb.PAYLOAD_TOO_LARGE,
                f"{len(messages)} messages of {size} bytes: a request of several may have {MAX_BATCH_BYTES}",
            )
        keys = tuple(message.system_properties.message_id for message in messages)
        return Outgoing(
            topic,
            encode_batch(parts),
            "",
            0,
            _born_ms(messages[0]),
            keys,
            is_batch=True,
            idempotent=True,
            fields=caller.ext if self._speaks else None,
        )

    def _checked(self, caller: Caller, topic: str, message: pb.Message, kind: pb.MessageType) -> tuple[bytes, str]:
        """Return body and properties of a message. Raises `Refusal`."""
        body = self._body(message)
        properties = _properties(caller, topic, message, kind)
        try:
            return body, format_properties(properties)
        except ValueError as error:
            raise Refusal(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, str(error)) from error

    def _body(self, message: pb.Message) -> bytes:
        body, limit = message.body, self._max_body_bytes
        if not body:
            raise Refusal(pb.MESSAGE_BODY_EMPTY, "the message has no body: send at least one byte")
        if message.system_properties.body_encoding == pb.GZIP:
            body = _decompressed(body, limit)
        if len(body) > limit:
            raise Refusal(pb.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes, the limit is {limit}")
        return body


def request_topic(messages: Sequence[pb.Message]) -> str:
    """Return the topic of all messages of a request, as brokers know it. Raises `Refusal`."""
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise Refusal(pb.MESSAGE_CORRUPTED, f"{len(messages)} messages in the request: send 1 to {MAX_MESSAGES}")
    if any(message.topic != messages[0].topic for message in messages):
        raise Refusal(pb.MESSAGE_CORRUPTED, "the messages of a request have different topics: send them one by one")
    return topic_name(messages[0].topic)


def _properties(caller: Caller, topic: str, message: pb.Message, kind: pb.MessageType) -> dict[str, str]:
    """Return the properties that are stored. A repeated request gets the same ones, so that brokers recognise it."""
    system = message.system_properties
    keys = list(system.keys)
    _check_user_properties(message.user_properties, [system.tag, *keys])
    _check_text(system.tag, "tag", pb.ILLEGAL_MESSAGE_TAG, forbidden="|")
    for key in keys:
        _check_text(key, "key", pb.ILLEGAL_MESSAGE_KEY)
    message_id = system.message_id
    if not message_id.strip() or len(message_id) > MAX_MESSAGE_ID_CHARS or not message_id.isprintable():
        raise Refusal(pb.ILLEGAL_MESSAGE_ID, f"message id {message_id[:40]!r}: 1 to {MAX_MESSAGE_ID_CHARS} characters")
    stored = {names.UNIQUE_KEY: message_id}
    if system.tag:
        stored[names.TAGS] = system.tag
    if keys:
        stored[names.KEYS] = " ".join(keys)
    stored.update(sorted(message.user_properties.items()))
    if message.topic.resource_namespace:
        stored[names.INSTANCE_ID] = message.topic.resource_namespace
    if kind == pb.TRANSACTION:
        stored |= {names.TRANSACTION_PREPARED: "true", names.PRODUCER_GROUP: topic} | _recovery(system)
    elif kind == pb.DELAY:
        stored[names.TIMER_DELIVER_MS] = str(_delivery_ms(system))
    elif kind == pb.FIFO:
        _check_text(system.message_group, "message group", pb.ILLEGAL_MESSAGE_GROUP)
        if len(system.message_group.encode()) > MAX_MESSAGE_GROUP_BYTES:
            raise Refusal(pb.ILLEGAL_MESSAGE_GROUP, f"the message group is longer than {MAX_MESSAGE_GROUP_BYTES} bytes")
        stored[names.SHARDING_KEY] = system.message_group
    if system.trace_context:
        stored[TRACE_CONTEXT] = system.trace_context
    if host := system.born_host or caller.address.ip:
        stored[BORN_HOST] = host
    return stored


def _check_user_properties(properties: Mapping[str, str], others: Iterable[str]) -> None:
    if len(properties) > MAX_USER_PROPERTIES:
        raise Refusal(
            pb.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(properties)} properties, the limit is {MAX_USER_PROPERTIES}"
        )
    for name, value in properties.items():
        if name in RESERVED_NAMES:
            raise Refusal(pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} belongs to the service: rename it")
        if not name or _has_control_characters(name) or _has_control_characters(value):
            raise Refusal(
                pb.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r}: control characters are not allowed, nor no name"
            )
    size = sum(len(text.encode()) for item in properties.items() for text in item)
    size += sum(len(text.encode()) for text in others)
    if size > MAX_USER_PROPERTIES_BYTES:
        raise Refusal(
            pb.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties, tag and keys have {size} bytes, the limit is {MAX_USER_PROPERTIES_BYTES}",
        )


def _check_text(text: str, what: str, code: pb.Code, forbidden: str = "") -> None:
    """Raise `Refusal` for a text of blanks, or with control characters or forbidden ones. An empty text passes."""
    if not text:
        return
    if not text.strip() or _has_control_characters(text) or any(one in text for one in forbidden):
        shown = f", nor {forbidden}" if forbidden else ""
        raise Refusal(code, f"{what} {text[:40]!r}: neither only blanks nor control characters{shown} are allowed")


def _has_control_characters(text: str) -> bool:
    return not text.isprintable() and any(ord(one) < 0x20 or 0x7F <= ord(one) < 0xA0 for one in text)


def _recovery(system: pb.SystemProperties) -> dict[str, str]:
    """Return the property with the time for which a transaction is left to its producer. Raises `Refusal`."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return {}
    seconds = system.orphaned_transaction_recovery_duration.seconds
    if not 0 <= seconds <= MAX_RECOVERY_S:
        raise Refusal(
            pb.BAD_REQUEST, f"orphaned_transaction_recovery_duration is {seconds} s: 0 to {MAX_RECOVERY_S} s expected"
        )
    return {names.CHECK_IMMUNITY_SECONDS: str(seconds)}


def _delivery_ms(system: pb.SystemProperties) -> int:
    milliseconds = _ms(system.delivery_timestamp.seconds, system.delivery_timestamp.nanos)
    if milliseconds <= 0:
        raise Refusal(
            pb.ILLEGAL_DELIVERY_TIME, f"delivery_timestamp is {milliseconds} ms since 1970: a time is expected"
        )
    return milliseconds


def _born_ms(message: pb.Message) -> int:
    born = message.system_properties.born_timestamp
    return max(0, _ms(born.seconds, born.nanos))


def _ms(seconds: int, nanos: int) -> int:
    """Return ms within the numbers of the wire."""
    return max(-(2**62), min(seconds * 1_000 + nanos // 1_000_000, 2**62))


def _decompressed(body: bytes, limit: int) -> bytes:
    """Return a body that was in GZIP. Raises `Refusal` if it is not, or is larger than `limit`."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        data = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise Refusal(pb.MESSAGE_CORRUPTED, f"the body says GZIP and is not: {error}") from error
    if len(data) <= limit and not inflater.eof:
        raise Refusal(pb.MESSAGE_CORRUPTED, "the body in GZIP is cut off")
    return data
