"""Compressed message bodies: always zlib; LZ4 and Zstandard where `lz4` and `zstandard` are installed.

The sys flag says whether a body is compressed (bit 0x1) and how (bits 0x700: 0 or 0x300 zlib, 0x100 LZ4 frame, 0x200
Zstandard). Brokers store bodies as they come; only readers decompress. Format: RocketMQ's `MessageSysFlag`.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from importlib import import_module
from io import BytesIO
from typing import Final, Protocol, cast

from .errors import BodyError, MissingCodecError

COMPRESSION_MASK: Final = 0x700
DEFAULT_MAX_BYTES: Final = 16 << 20
"""Default maximum size of a decompressed body, in bytes: four times `record.MAX_MESSAGE_BYTES`."""
_ZSTD_PIECE_BYTES: Final = 256
"""Size of the pieces that are decompressed one by one, in bytes. A block of 128 KiB may be compressed to 4 bytes, so a
piece may become 10 MB.
"""
_SYS_COMPRESSED: Final = 0x1
"""Equals `record.SYS_COMPRESSED`. `record` needs msgspec, and bodies are also read where msgspec is not installed."""


class Compression(IntEnum):
    """Compression algorithms, as the bits of a sys flag."""

    UNSPECIFIED = 0
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Lz4Frame(Protocol):
    def open(self, source: BytesIO, mode: str) -> _Stream: ...


class _ZstdObject(Protocol):
    eof: bool

    def decompress(self, data: bytes) -> bytes: ...


class _ZstdDecompressor(Protocol):
    def decompressobj(self) -> _ZstdObject: ...


class _Zstandard(Protocol):
    def ZstdDecompressor(self) -> _ZstdDecompressor: ...  # noqa: N802 (name of the library)


def compress(body: bytes, level: int = 5) -> tuple[bytes, int]:
    """Compress a body as a zlib stream, which every client reads. Returns it with the sys flag bits that say so."""
    return zlib.compress(body, level), _SYS_COMPRESSED | Compression.ZLIB


def decompress(body: bytes, sys_flag: int, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
    """Return the body as its producer gave it. It is returned unchanged if the sys flag says that it is not compressed.

    Raises `BodyError` if the body is damaged, larger than `max_bytes`, or of an unknown algorithm. Raises
    `MissingCodecError` if the package of its algorithm is not installed.
    """
    if not sys_flag & _SYS_COMPRESSED:
        return body
    algorithm = sys_flag & COMPRESSION_MASK
    if algorithm in (Compression.UNSPECIFIED, Compression.ZLIB):
        return inflate(body, max_bytes)
    if algorithm == Compression.LZ4:
        return _decompress_lz4(body, max_bytes)
    if algorithm == Compression.ZSTD:
        return _decompress_zstandard(body, max_bytes)
    raise BodyError(f"compression type {algorithm:#x} is none of 0x0, 0x100, 0x200, 0x300")


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Decompress a zlib stream. Raises `BodyError` if it is damaged or its content is larger than `max_bytes`."""
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise BodyError(f"zlib stream of {len(data)} bytes is damaged: {error}") from error
    if len(content) > max_bytes:
        raise _too_large("zlib", max_bytes)
    if not stream.eof:
        raise BodyError(f"zlib stream of {len(data)} bytes is cut off")
    return content


def _module(name: str, distribution: str) -> object:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingCodecError(f"the body needs the package {distribution!r}: pip install {distribution}") from error


def _decompress_lz4(body: bytes, max_bytes: int) -> bytes:
    lz4 = cast("_Lz4Frame", _module("lz4.frame", "lz4"))
    try:
        content = lz4.open(BytesIO(body), "rb").read(max_bytes + 1)
    except Exception as error:
        raise BodyError(f"LZ4 data is damaged: {error}") from error
    if len(content) > max_bytes:
        raise _too_large("LZ4", max_bytes)
    return content


def _decompress_zstandard(body: bytes, max_bytes: int) -> bytes:
    """Decompress piece by piece, to notice data that is cut off: the library's own streams end there without an
    error.
    """
    zstandard = cast("_Zstandard", _module("zstandard", "zstandard"))
    parts: list[bytes] = []
    size = start = 0
    try:
        stream = zstandard.ZstdDecompressor().decompressobj()
        while not stream.eof and start < len(body) and size <= max_bytes:
            parts.append(stream.decompress(body[start : start + _ZSTD_PIECE_BYTES]))
            size += len(parts[-1])
            start += _ZSTD_PIECE_BYTES
    except Exception as error:
        raise BodyError(f"Zstandard data is damaged: {error}") from error
    if size > max_bytes:
        raise _too_large("Zstandard", max_bytes)
    if not stream.eof:
        raise BodyError(f"Zstandard data of {len(body)} bytes is cut off")
    return b"".join(parts)


def _too_large(algorithm: str, max_bytes: int) -> BodyError:
    return BodyError(f"{algorithm} data holds more than the limit of {max_bytes} bytes")
