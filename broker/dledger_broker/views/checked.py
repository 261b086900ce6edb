"""Small files that are replaced as a whole: crc32 of the content (4 bytes, big-endian), then the content in
MessagePack.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from dledger.store.disk import Disk, write_file_durably
from dledger.store.unreadable import is_lost
from dledger_base.checksum import crc32

_CRC_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode

T = TypeVar("T", bound=msgspec.Struct)


def write_checked(disk: Disk, path: str, content: msgspec.Struct) -> None:
    """Replace a file. Blocks until it is durable."""
    payload = _encode(content)
    write_file_durably(disk, path, crc32(payload).to_bytes(_CRC_BYTES, "big") + payload)


def read_checked(disk: Disk, path: str, kind: type[T]) -> T | None:
    """Return the content of a file, None if it is missing, damaged, unreadable or of another form."""
    try:
        file = disk.open(path)
    except OSError as error:
        if not is_lost(error):
            raise
        return None
    try:
        data = file.pread(file.size(), 0)
    except OSError as error:
        if not is_lost(error):
            raise
        return None
    finally:
        file.close()
    if len(data) < _CRC_BYTES or crc32(data[_CRC_BYTES:]).to_bytes(_CRC_BYTES, "big") != data[:_CRC_BYTES]:
        return None
    try:
        return msgspec.msgpack.decode(data[_CRC_BYTES:], type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
