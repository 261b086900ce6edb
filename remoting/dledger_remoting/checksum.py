"""CRC-32 (the zlib polynomial), from isal where it is installed because it is several times faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


def _implementation() -> Callable[[Buffer, int], int]:
    try:
        from isal.isal_zlib import crc32 as isal_crc32
    except ImportError:
        from zlib import crc32 as zlib_crc32

        return zlib_crc32
    return isal_crc32  # type: ignore[no-any-return, unused-ignore]


_crc32 = _implementation()


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 of `data` continued from `value`, as an unsigned 32-bit integer."""
    return _crc32(data, value)
