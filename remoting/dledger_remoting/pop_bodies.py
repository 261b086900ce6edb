"""Bodies of POP: acknowledgements of many messages (200151). Format: RocketMQ's `BatchAckMessageRequestBody`."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from .bodies import decode_body, encode_body
from .errors import BodyError
from .integers import Int32, Int64
from .pop import Retry

MAX_BITS_CHARS: Final = 4_096
"""Maximum length of one bit set in characters. It spans some 24,000 offsets, more than one pop examines."""
MAX_ALL_BITS_CHARS: Final = 4 * MAX_BITS_CHARS
"""Maximum length of all bit sets of a body in characters, because the broker looks up each acknowledged offset."""
_SHORT_NAMES: Final[Mapping[str, str]] = {
    "consumerGroup": "c",
    "topic": "t",
    "retry": "r",
    "startOffset": "so",
    "queueId": "q",
    "reviveQueueId": "rq",
    "popTime": "pt",
    "invisibleTime": "it",
    "bitSet": "b",
}


class BatchAck(msgspec.Struct, frozen=True):
    """Acknowledged messages of one delivery.

    `bits` is a bit set in Base64, little endian. Bit n, counted from the lowest, is for the offset
    `start_offset` + n. Clients write the short names. `decode_batch_ack` also reads the long names.
    """

    consumer_group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    retry: Retry = msgspec.field(name="r")
    start_offset: Int64 = msgspec.field(name="so")
    queue_id: Int32 = msgspec.field(name="q")
    pop_time: Int64 = msgspec.field(name="pt")
    bits: str = msgspec.field(name="b")

    @property
    def offsets(self) -> list[int]:
        """The acknowledged offsets. Raises `BodyError`."""
        if len(self.bits) > MAX_BITS_CHARS:
            raise BodyError(f"batch ack body: a bitSet has {len(self.bits)} characters, the limit is {MAX_BITS_CHARS}")
        try:
            bits = int.from_bytes(b64decode(self.bits, validate=True), "little")
        except (Base64Error, ValueError) as error:
            raise BodyError(f"batch ack body: bitSet {self.bits[:64]!r} is no Base64") from error
        first = self.start_offset
        return [first + number for number, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]


def decode_batch_ack(body: bytes) -> list[BatchAck]:
    """Decode the acknowledgements of a body. Raises `BodyError`."""
    rows = decode_body(_BatchAckBody, body, "batch ack").acks
    try:
        acks = msgspec.convert([_with_short_names(row) for row in rows], list[BatchAck], strict=False)
    except msgspec.ValidationError as error:
        raise BodyError(f"batch ack body: {error}") from error
    chars = sum(len(ack.bits) for ack in acks)
    if chars > MAX_ALL_BITS_CHARS:
        raise BodyError(f"batch ack body: all bitSets have {chars} characters, the limit is {MAX_ALL_BITS_CHARS}")
    return acks


def encode_batch_ack(broker_name: str, acks: Sequence[BatchAck]) -> bytes:
    """Encode the body of 200151 as clients write it, with the short names."""
    return encode_body(_WrittenBatchAckBody(broker_name, acks))


def bits_of(start_offset: int, offsets: Iterable[int]) -> str:
    """Return the bit set of some offsets, none of which may be below `start_offset`."""
    bits = sum(1 << offset - start_offset for offset in set(offsets))
    return b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


def _with_short_names(row: Mapping[str, object]) -> dict[str, object]:
    return {_SHORT_NAMES.get(name, name): value for name, value in row.items()}


class _BatchAckBody(msgspec.Struct, frozen=True):
    acks: list[dict[str, str | int | None]] = []


class _WrittenBatchAckBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_name: str
    acks: Sequence[BatchAck]
