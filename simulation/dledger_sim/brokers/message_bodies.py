"""Bodies of the messages that simulated clients send: each names the operation that it was sent in."""

from __future__ import annotations

import struct
from typing import Final

from dledger_sim.log.invariants import require

_BODY: Final = struct.Struct(">4sQ")
_MARK: Final = b"simu"
BODY_BYTES: Final = _BODY.size
"""Of the shortest body that names its operation."""


def encode_body(operation: int, padding: int) -> bytes:
    """A message's body."""
    return _BODY.pack(_MARK, operation) + bytes(padding)


def operation_of(body: bytes | memoryview) -> int:
    """The operation that a body names."""
    mark, operation = _BODY.unpack_from(body)
    require(mark == _MARK, "every record's body is one that was sent", found=bytes(body[:BODY_BYTES]))
    return int(operation)
