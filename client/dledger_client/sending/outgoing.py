"""Encoder of a producer's messages for the wire: properties, limits, compression."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import ceil
from typing import Final

from dledger_remoting import properties as names
from dledger_remoting.batch import BatchMessage, encode_batch
from dledger_remoting.compression import compress
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.filters.tags import is_one_tag
from dledger_remoting.ids import UniqueKeyGenerator
from dledger_remoting.properties import NAME_END, RESERVED_NAMES, VALUE_END
from dledger_remoting.record import MAX_MESSAGE_BYTES, MAX_PROPERTIES_BYTES
from dledger_remoting.topics import is_retry_topic, is_send_forbidden, validate_topic

from ..arguments import at_least, check
from ..cluster.surroundings import random_bits, wall_ms
from ..errors import InvalidArgumentError
from ..messages import Message
from .wire import Outgoing

COMPRESS_OVER_BYTES: Final = 4096
"""Maximum size in bytes of a body that is sent uncompressed. RocketMQ's clients have the same default."""

MAX_BATCH_BYTES: Final = 1024 * 1024
"""Default maximum size of one request of a batch, in bytes. Brokers refuse more than 4 MiB."""

LEAST_MS: Final = 10**11
"""Minimum of a time in ms since 1970. A smaller number is refused, because it is probably in seconds."""

_BATCH_MESSAGE_OVERHEAD_BYTES: Final = 22


def validate_destination(topic: str) -> None:
    """Raise `InvalidArgumentError` if `topic` is not the name of a topic that clients may send to."""
    try:
        validate_topic(topic)
    except InvalidParameter as error:
        raise InvalidArgumentError(error.remark) from error
    if is_send_forbidden(topic):
        raise InvalidArgumentError(f"topic {topic!r} belongs to the broker, clients may not send to it")


class OutgoingEncoder:
    """Encodes messages. `compress_over_bytes` None switches compression off; `instance_id` is the namespace."""

    def __init__(
        self,
        *,
        compress_over_bytes: int | None = COMPRESS_OVER_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        instance_id: str | None = None,
    ) -> None:
        self._compress_over_bytes = compress_over_bytes
        self._max_message_bytes = max_message_bytes
        self._max_batch_bytes = min(max_batch_bytes, max_message_bytes)
        self._namespace_property = "" if instance_id is None else _format_property(names.INSTANCE_ID, instance_id)
        self._unique_keys = UniqueKeyGenerator("127.0.0.1", os.getpid(), random_bits(32))

    def encode(self, topic: str, message: Message, *, idempotent: bool = False) -> Outgoing:
        """Encode one message. Raises `InvalidArgumentError` if it breaks a limit or has an invalid property."""
        now_ms = wall_ms()
        self._check_body(message.body)
        unique_key = self._unique_key(message, now_ms)
        text = self._namespace_property + _format_properties(unique_key, message)
        body, sys_flag = message.body, 0
        if self._compress_over_bytes is not None and len(body) > self._compress_over_bytes:
            compressed, flag = compress(body)
            if len(compressed) < len(body):
                body, sys_flag = compressed, flag
        return Outgoing(topic, body, text, sys_flag, now_ms, (unique_key,), idempotent=idempotent)

    def encode_batches(
        self, topic: str, messages: Sequence[Message | bytes], *, idempotent: bool = False
    ) -> list[Outgoing]:
        """Encode messages in their order, in as few requests as the limits allow. Bodies in batches are not compressed.

        A message with a delay gets a request of its own, as from `encode`. Raises `InvalidArgumentError` if a message
        breaks a limit or has an invalid property, or if the topic is a retry topic.
        """
        if is_retry_topic(topic):
            raise InvalidArgumentError(f"batches cannot be sent to the retry topic {topic!r}")
        now_ms = wall_ms()
        batches: list[Outgoing] = []
        parts: list[BatchMessage] = []
        keys: list[str] = []
        size = 0
        for item in messages:
            message = item if isinstance(item, Message) else Message(item)
            if message.delay_s is not None or message.deliver_at is not None:
                if parts:
                    batches.append(_encode_batch(topic, parts, keys, now_ms, idempotent=idempotent))
                    parts, keys, size = [], [], 0
                batches.append(self.encode(topic, message, idempotent=idempotent))
                continue
            self._check_body(message.body)
            unique_key = self._unique_key(message, now_ms)
            text = (self._namespace_property + _format_properties(unique_key, message)).encode()
            part_size = _BATCH_MESSAGE_OVERHEAD_BYTES + len(message.body) + len(text)
            if part_size > self._max_message_bytes:
                raise InvalidArgumentError(
                    f"message of {part_size} bytes with its properties is larger than {self._max_message_bytes}"
                )
            if parts and size + part_size > self._max_batch_bytes:
                batches.append(_encode_batch(topic, parts, keys, now_ms, idempotent=idempotent))
                parts, keys, size = [], [], 0
            parts.append(BatchMessage(0, message.body, text))
            keys.append(unique_key)
            size += part_size
        if parts:
            batches.append(_encode_batch(topic, parts, keys, now_ms, idempotent=idempotent))
        return batches

    def _unique_key(self, message: Message, now_ms: int) -> str:
        key = message.unique_key
        if key is None:
            return self._unique_keys.next(now_ms)
        if not key or NAME_END in key or VALUE_END in key:
            raise InvalidArgumentError(f"unique key {key!r}: it must not be empty, nor hold \\x01 or \\x02")
        return key

    def _check_body(self, body: bytes) -> None:
        if len(body) > self._max_message_bytes:
            raise InvalidArgumentError(f"body of {len(body)} bytes is larger than {self._max_message_bytes}")


def _encode_batch(topic: str, parts: list[BatchMessage], keys: list[str], now_ms: int, *, idempotent: bool) -> Outgoing:
    return Outgoing(topic, encode_batch(parts), "", 0, now_ms, tuple(keys), is_batch=True, idempotent=idempotent)


def _format_properties(unique_key: str, message: Message) -> str:
    key, tags, properties = message.key, message.tags, message.properties
    text = f"{names.UNIQUE_KEY}{NAME_END}{unique_key}{VALUE_END}"
    if message.delay_s is not None or message.deliver_at is not None:
        text += _format_delay(message.delay_s, message.deliver_at)
    if key is not None:
        text += _format_property(names.KEYS, _join_keys(key))
    if tags:
        if not is_one_tag(tags):
            raise InvalidArgumentError(
                f"tags={tags!r}: no subscription could find it, for '||' separates tags there, and blanks and control "
                "characters around them count for nothing"
            )
        text += _format_property(names.TAGS, tags)
    if properties:
        for name, value in properties.items():
            if name in RESERVED_NAMES:
                raise InvalidArgumentError(f"property name {name!r} is reserved")
            text += _format_property(name, value)
    if len(text) * 4 > MAX_PROPERTIES_BYTES and (size := len(text.encode())) > MAX_PROPERTIES_BYTES:
        raise InvalidArgumentError(f"properties of {size} bytes are longer than {MAX_PROPERTIES_BYTES}")
    return text


def _format_delay(delay_s: float | None, deliver_at: datetime | int | None) -> str:
    """Return the property that asks for a delay; empty for a delay of 0."""
    if delay_s is not None and deliver_at is not None:
        raise InvalidArgumentError(f"delay_s={delay_s!r} and deliver_at={deliver_at!r}: give one of them")
    if delay_s is not None:
        at_least(0, delay_s=delay_s)
        return _format_property(names.TIMER_DELAY_MS, str(ceil(delay_s * 1000))) if delay_s else ""
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise InvalidArgumentError(f"deliver_at={deliver_at!r}: a time with a time zone is expected")
        deliver_at = ceil(deliver_at.timestamp() * 1000)
    elif deliver_at is not None and deliver_at < LEAST_MS:
        raise InvalidArgumentError(
            f"deliver_at={deliver_at!r}: milliseconds since 1970, at least {LEAST_MS}, are expected; are these seconds?"
        )
    return _format_property(names.TIMER_DELIVER_MS, str(deliver_at))


def _join_keys(key: str | Iterable[str]) -> str:
    if isinstance(key, str):
        return key
    keys = list(key)
    check("key", keys, Sequence[str])  # earlier checks cannot look into an iterator
    invalid = next((candidate for candidate in keys if " " in candidate), None)
    if invalid is not None:
        raise InvalidArgumentError(f"key {invalid!r}: a blank separates keys, so it cannot be part of one")
    return " ".join(keys)


def _format_property(name: str, value: str) -> str:
    if not name or NAME_END in name or VALUE_END in name or NAME_END in value or VALUE_END in value:
        raise InvalidArgumentError(
            f"property {name!r} = {value!r}: names must not be empty, nothing may hold \\x01 or \\x02"
        )
    return f"{name}{NAME_END}{value}{VALUE_END}"
