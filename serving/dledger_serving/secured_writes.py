"""Writes to connections with TLS in pieces, so that limits on what a client leaves unread hold for them too.

A transport with TLS counts what its lower transport has not taken yet, and that takes whatever one write has encrypted,
however much: 25 MiB in one call are all gone, `get_write_buffer_size` says 0 and `pause_writing` is never called. After
a piece the lower transport says that it is full, and what follows is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

PIECE_BYTES: Final = 256 << 10
"""The most that one write has encrypted, and so about the most that is not counted."""


def is_secured(transport: asyncio.BaseTransport) -> bool:
    """Whether what is written to `transport` is encrypted."""
    return transport.get_extra_info("sslcontext") is not None


def write_secured(transport: asyncio.Transport, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write `parts` to a transport with TLS, as far as it is not closing."""
    for piece in _pieces(parts):
        if transport.is_closing():
            return
        transport.write(piece)


def _pieces(parts: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """The same bytes, in pieces of `PIECE_BYTES` and what is left."""
    gathered: list[memoryview] = []
    room = PIECE_BYTES
    for part in parts:
        left = memoryview(part)
        while len(left) >= room:
            gathered.append(left[:room])
            left = left[room:]
            yield b"".join(gathered)
            gathered, room = [], PIECE_BYTES
        gathered.append(left)
        room -= len(left)
    if room < PIECE_BYTES:
        yield b"".join(gathered)
