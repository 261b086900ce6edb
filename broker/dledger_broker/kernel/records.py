"""Encoder of message records: completes a sender's fields with queue offset, position, store time and store host.

A record is complete only when its unit has a position, in the turn that stages it. All fields that are known before are
prepared as `MessageParts`. The fields that all messages of a sender have in common are packed once
(`RECORD_HEAD_SHARED`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Final, TypeAlias

from dledger_broker.kernel.queues import QueueState
from dledger_broker.views.units import UNIT
from dledger_remoting.checksum import crc32
from dledger_remoting.record import (
    MAGIC_V1,
    MAGIC_V2,
    MAX_V1_TOPIC_BYTES,
    RECORD_HEAD_AROUND,
    RECORD_HEAD_BYTES,
    topic_field,
)

MessageParts: TypeAlias = tuple[bytes, bytes, int, int]
"""A message ready to be stored: its body, the record's part behind the body, the user's flag and the tag code."""

_pack_around: Final = RECORD_HEAD_AROUND.pack
_pack_unit: Final = UNIT.pack
_pack_length: Final = Struct(">H").pack


def magic_of(topic: bytes) -> int:
    """Return the version of a topic's records."""
    return MAGIC_V2 if len(topic) > MAX_V1_TOPIC_BYTES else MAGIC_V1


def tail_of(topic: bytes, properties: bytes) -> bytes:
    """Return a record's part behind the body. It has at most 32,767 bytes of properties."""
    return b"".join((topic_field(topic), _pack_length(len(properties)), properties))


def message_sizes(messages: Sequence[MessageParts]) -> list[int]:
    """Return the sizes of the records of these messages."""
    return [RECORD_HEAD_BYTES + len(body) + len(tail) for body, tail, _, _ in messages]


def encode_run(
    parts: list[bytes],
    units: list[bytes],
    messages: Sequence[MessageParts],
    sizes: Sequence[int],
    position: int,
    queue: QueueState,
    magic: int,
    shared: bytes,
) -> tuple[list[int], int]:
    """Add the records of messages that follow one another in a queue to `parts`, and their units to `units`.

    The first record will be at `position`. The queue hands out the offsets. `shared` are the common fields of the
    records' heads. Return the position of each record, and the position behind the last.
    """
    positions = list(accumulate(sizes, initial=position))
    behind = positions.pop()
    queue_id, first_offset = queue.queue_id, queue.staged_offset
    queue.staged_offset = end_offset = first_offset + len(messages)
    for (body, tail, flag, tag_code), size, queue_offset, at in zip(
        messages, sizes, range(first_offset, end_offset), positions, strict=True
    ):
        parts += (
            _pack_around(size, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, at, shared, len(body)),
            body,
            tail,
        )
        units.append(_pack_unit(at, size, tag_code))
    return positions, behind
