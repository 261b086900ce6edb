"""CRC-32 (IEEE, as zlib's), computed by ISA-L if that is installed, because ISA-L is several times faster."""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
