"""Opaque texts that clients keep and give back: receipt handles and ids of transactions.

A token holds all that a later request needs, so every proxy can use it. It is bound to names, such as group and topic,
and given back with other names it is refused. The check finds mistakes. It is no secret: brokers judge rights.

| bytes | |
|---|---|
| 1 | kind |
| 8 | BLAKE2s of kind, names and fields |
| the rest | MessagePack array of the fields |

All of it is URL-safe base64 without padding.
"""

from __future__ import annotations

import base64
import binascii
from enum import IntEnum
from hashlib import blake2s
from typing import Final, TypeVar

import msgspec

from dledger_remoting.pop import CheckPoint, Retry

MAX_TOKEN_CHARS: Final = 1_024
"""Maximum length of a token in characters."""
_CHECK_BYTES: Final = 8


class Kind(IntEnum):
    """Kind of thing that a token stands for."""

    RECEIPT = 1
    TRANSACTION = 2


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """One delivery of a message to a group.

    `position` is the message's physical offset. The other fields are those of its check point.
    """

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    is_ordered: bool
    retry: str
    broker_group: str
    queue_id: int
    queue_offset: int
    position: int

    @classmethod
    def of(cls, point: CheckPoint, position: int) -> Receipt:
        """Return the receipt of a message with this check point."""
        return cls(
            point.start_offset,
            point.pop_time_ms,
            point.invisible_ms,
            point.is_ordered,
            str(point.retry),
            point.broker_name,
            point.queue_id,
            point.queue_offset,
            position,
        )

    @property
    def point(self) -> CheckPoint:
        """The check point, by which brokers know the delivery. Raises ValueError."""
        return CheckPoint(
            self.start_offset,
            self.pop_time_ms,
            self.invisible_ms,
            self.is_ordered,
            Retry(self.retry),
            self.broker_group,
            self.queue_id,
            self.queue_offset,
        )


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """One message that waits for its producer's decision, by its place at its broker group."""

    broker_group: str
    position: int
    queue_offset: int


FieldsT = TypeVar("FieldsT", Receipt, Transaction)
_KINDS: Final = {Receipt: Kind.RECEIPT, Transaction: Kind.TRANSACTION}


def encode_token(fields: Receipt | Transaction, *names: str) -> str:
    """Return the token of these fields, bound to names."""
    kind, body = _KINDS[type(fields)], msgspec.msgpack.encode(fields)
    data = bytes([kind]) + _check(kind, names, body) + body
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode_token(wanted: type[FieldsT], text: str, *names: str) -> FieldsT:
    """Return the fields of a token. Raises ValueError unless it is of this kind and bound to these names."""
    if len(text) > MAX_TOKEN_CHARS:
        raise ValueError(f"it has {len(text)} characters, at most {MAX_TOKEN_CHARS} are expected")
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("it was not made by a proxy") from None
    kind, check, body = data[:1], data[1 : 1 + _CHECK_BYTES], data[1 + _CHECK_BYTES :]
    if kind != bytes([_KINDS[wanted]]) or check != _check(_KINDS[wanted], names, body):
        raise ValueError(f"it was not made by a proxy for {', '.join(names)}")
    try:
        return msgspec.msgpack.decode(body, type=wanted)
    except msgspec.MsgspecError as error:
        raise ValueError("it was made by another version of the proxy") from error


def _check(kind: Kind, names: tuple[str, ...], body: bytes) -> bytes:
    return blake2s(msgspec.msgpack.encode((kind, names)) + body, digest_size=_CHECK_BYTES).digest()
