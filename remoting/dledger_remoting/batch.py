"""Body of a batch send: messages back to back. Integers are big-endian.

| bytes | field |
|---|---|
| 4 | total size, this field included |
| 4 | magic, 0 |
| 4 | body crc, 0 |
| 4 | flag (the user's) |
| 4 + n | body |
| 2 + n | properties |

Format: RocketMQ's `MessageDecoder.encodeMessage`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from .errors import MessageIllegal
from .frame import MAX_FRAME_BYTES
from .record import MAX_PROPERTIES_BYTES

_HEAD: Final = Struct(">iiiii")
_HEAD_BYTES: Final = 20
MIN_MESSAGE_BYTES: Final = _HEAD_BYTES + 2
"""Size of a message without body and properties, in bytes."""
_PROPERTIES_LENGTH: Final = Struct(">H")


class BatchMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a batch. The request holds what all of them share: topic, queue, sys flag and born time."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """Encode the body of a batch send. Raises `MessageIllegal` if a message's properties are too long."""
    parts: list[bytes] = []
    for message in messages:
        if len(message.properties) > MAX_PROPERTIES_BYTES:
            raise MessageIllegal(
                f"properties of {len(message.properties)} bytes are longer than {MAX_PROPERTIES_BYTES}"
            )
        size = _HEAD_BYTES + len(message.body) + 2 + len(message.properties)
        parts += (
            _HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            _PROPERTIES_LENGTH.pack(len(message.properties)),
            message.properties,
        )
    return b"".join(parts)


def decode_batch(data: bytes) -> list[BatchMessage]:
    """Decode the messages of a batch. Raises `MessageIllegal` if the batch is empty or its lengths contradict each
    other.
    """
    return [BatchMessage(*message) for message in split_batch(data)]


def split_batch(data: bytes, most: int = MAX_FRAME_BYTES) -> list[tuple[int, bytes, bytes]]:
    """Return flag, body and properties of each message of a batch.

    Raises `MessageIllegal` as `decode_batch` does, and as soon as more than `most` messages are found.
    """
    return _split_alike(data, most) or _split(data, most)


@lru_cache(maxsize=256)
def _message(body_bytes: int, properties_bytes: int) -> Struct:
    """Return the struct of a message of these sizes: the fields of `_HEAD`, body, properties length and properties."""
    return Struct(f">iiiii{body_bytes}sH{properties_bytes}s")


def _too_many(data: bytes, most: int) -> MessageIllegal:
    return MessageIllegal(
        f"the batch of {len(data)} bytes has more than {most} messages, whose records would be too large together: "
        "send fewer at once"
    )


def _split_alike(data: bytes, most: int) -> list[tuple[int, bytes, bytes]] | None:
    """Split a batch whose messages all have the sizes of the first one, in one pass.

    Returns None for any other batch.
    """
    end = len(data)
    if end < _HEAD_BYTES + 2:
        return None
    size, _, _, _, body_bytes = _HEAD.unpack_from(data)
    properties_bytes = size - _HEAD_BYTES - 2 - body_bytes
    if body_bytes < 0 or properties_bytes < 0 or end % size:
        return None
    if end // size > most:
        return None  # too many: `_split` raises the error after `most` messages
    messages = [
        (flag, body, properties)
        for total, _, _, flag, length, body, tail, properties in _message(body_bytes, properties_bytes).iter_unpack(
            data
        )
        if total == size and length == body_bytes and tail == properties_bytes
    ]
    return messages if len(messages) * size == end else None


def _split(data: bytes, most: int = MAX_FRAME_BYTES) -> list[tuple[int, bytes, bytes]]:
    messages: list[tuple[int, bytes, bytes]] = []
    add = messages.append
    unpack = _HEAD.unpack_from
    end = len(data)
    position = 0
    for _ in range(most):
        if position >= end:
            break
        if end - position < _HEAD_BYTES + 2:
            raise MessageIllegal(f"batch message {len(messages)} is cut off: {end - position} bytes are left")
        size, _, _, flag, body_bytes = unpack(data, position)
        body_start = position + _HEAD_BYTES
        body_end = body_start + body_bytes
        next_position = position + size
        if body_bytes < 0 or next_position > end or body_end + 2 > next_position:
            raise MessageIllegal(
                f"batch message {len(messages)} says size {size} and body length {body_bytes}, "
                f"{end - position} bytes are left"
            )
        properties_bytes = data[body_end] << 8 | data[body_end + 1]
        if body_end + 2 + properties_bytes != next_position:
            raise MessageIllegal(
                f"batch message {len(messages)} says size {size}, its fields need "
                f"{body_end + 2 + properties_bytes - position}"
            )
        add((flag, data[body_start:body_end], data[body_end + 2 : next_position]))
        position = next_position
    if position < end:
        raise _too_many(data, most)
    if not messages:
        raise MessageIllegal("the batch holds no message")
    return messages
