"""Message bodies that say which message they are, and whether they are still whole.

| part | |
|---|---|
| value | the message's name, unique within the run, without spaces |
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
    """A body of `size_bytes`, or as short as possible if that is longer."""
    name = value.encode()
    padding = (name[-1:] or b"-") * max(0, size_bytes - len(name) - 10)
    return b"%b %08x %b" % (name, crc32(padding, crc32(name)), padding)


def decode_payload(body: bytes) -> str:
    """The value, or a text that begins with `damaged:` if this is not a whole body."""
    name, separator, rest = body.partition(b" ")
    checksum, second, padding = rest.partition(b" ")
    if separator and second and checksum == b"%08x" % crc32(padding, crc32(name)):
        return name.decode(errors="replace")
    return f"{DAMAGED_PREFIX}{len(body)}:{body[:_SHOWN_BYTES].hex()}"
