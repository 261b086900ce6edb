"""CRC-32 with the zlib polynomial. Uses isal where it is installed, which is several times faster than zlib."""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


class _Crc32(Protocol):
    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


def _implementation() -> _Crc32:
    try:
        from isal.isal_zlib import crc32 as isal_crc32
    except ImportError:
        from zlib import crc32 as zlib_crc32

        return zlib_crc32
    return isal_crc32  # type: ignore[no-any-return, unused-ignore]


crc32: Final = _implementation()
"""Returns the CRC-32 of the data as an unsigned 32-bit integer, continued from a previous value if one is given."""
