"""Bodies of the messages that simulated clients send. Each names the operation that sent it."""

from __future__ import annotations

import struct
from typing import Final

from dledger_sim.log.invariants import require

_BODY: Final = struct.Struct(">4sQ")
_MARK: Final = b"simu"
BODY_BYTES: Final = _BODY.size
"""Size of the shortest body that names its operation, in bytes."""

POSITION_DIGITS: Final = 16
"""Number of hexadecimal digits at the end of a message id: the physical offset."""


def encode_body(operation: int, padding: int) -> bytes:
    """Return a message's body."""
    return _BODY.pack(_MARK, operation) + bytes(padding)


def operation_of(body: bytes | memoryview) -> int:
    """Return the operation that a body names."""
    mark, operation = _BODY.unpack_from(body)
    require(mark == _MARK, "every record's body was sent by a client", found=bytes(body[:BODY_BYTES]))
    return int(operation)


def position_in(message_id: str) -> int:
    """Return the physical offset in a message id."""
    return int(message_id[-POSITION_DIGITS:], 16)
