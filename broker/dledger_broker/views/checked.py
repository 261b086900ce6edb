"""Small files that are replaced as a whole: crc32 of the rest (4 bytes, big-endian), then MessagePack."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dledger.checksum import crc32
from dledger.store.disk import Disk, write_file_durably

_CRC_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T", bound=msgspec.Struct)


def write_checked(disk: Disk, path: str, content: msgspec.Struct) -> None:
    """Replace a file; blocks until it is durable."""
    payload = _encode(content)
    write_file_durably(disk, path, crc32(payload).to_bytes(_CRC_BYTES, "big") + payload)


def read_checked(disk: Disk, path: str, kind: type[T]) -> T | None:
    """Return what a file holds, None if it is missing, damaged or of another form."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        data = file.pread(file.size(), 0)
    finally:
        file.close()
    if len(data) < _CRC_BYTES or crc32(data[_CRC_BYTES:]).to_bytes(_CRC_BYTES, "big") != data[:_CRC_BYTES]:
        return None
    try:
        return msgspec.msgpack.decode(data[_CRC_BYTES:], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
