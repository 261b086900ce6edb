"""Message bodies that identify their message and have a checksum.

| part | content |
|---|---|
| value | name of the message, unique within the run, without spaces |
| space | |
| crc32 | 8 hexadecimal digits, over value and padding |
| space | |
| padding | any bytes |
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

DAMAGED_PREFIX: Final = "damaged:"
_SHOWN_BYTES: Final = 24


def encode_payload(value: str, size_bytes: int = 0) -> bytes:
    """Return a body of `size_bytes`, or without padding if the value needs more."""
    name = value.encode()
    padding = (name[-1:] or b"-") * max(0, size_bytes - len(name) - 10)
    return b"%b %08x %b" % (name, crc32(padding, crc32(name)), padding)


def decode_payload(body: bytes) -> str:
    """Return the value, or a text that begins with `damaged:` if the body is not intact."""
    name, separator, rest = body.partition(b" ")
    checksum, second, padding = rest.partition(b" ")
    if separator and second and checksum == b"%08x" % crc32(padding, crc32(name)):
        return name.decode(errors="replace")
    return f"{DAMAGED_PREFIX}{len(body)}:{body[:_SHOWN_BYTES].hex()}"
