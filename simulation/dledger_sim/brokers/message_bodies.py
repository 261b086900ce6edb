"""Bodies of the messages that simulated clients send: each names the operation that it was sent in."""

from __future__ import annotations

import struct
from typing import Final

from dledger_sim.log.invariants import require

_BODY: Final = struct.Struct(">4sQ")
_MARK: Final = b"simu"
BODY_BYTES: Final = _BODY.size
"""Of the shortest body that names its operation."""

POSITION_DIGITS: Final = 16
"""A message id ends in so many hexadecimal digits: the physical offset."""


def encode_body(operation: int, padding: int) -> bytes:
    """A message's body."""
    return _BODY.pack(_MARK, operation) + bytes(padding)


def operation_of(body: bytes | memoryview) -> int:
    """The operation that a body names."""
    mark, operation = _BODY.unpack_from(body)
    require(mark == _MARK, "every record's body is one that was sent", found=bytes(body[:BODY_BYTES]))
    return int(operation)


def position_in(message_id: str) -> int:
    """The physical offset in a message id."""
    return int(message_id[-POSITION_DIGITS:], 16)
