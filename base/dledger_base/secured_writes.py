"""Writes in pieces to connections with TLS, so that limits on unread answers hold for them too.

A transport with TLS counts only the bytes that its lower transport has not taken yet. The lower transport takes
everything that one write has encrypted, however much. After one write of 25 MiB, `get_write_buffer_size` says 0 and
`pause_writing` is never called. If the data is written in pieces, the lower transport can report after each piece that
it is full. Later pieces then wait in the transport with TLS, which counts them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

PIECE_BYTES: Final = 256 << 10
"""Maximum size of one write in bytes. About as many unread bytes of a connection are not counted."""


def is_secured(transport: asyncio.BaseTransport) -> bool:
    """Return whether data written to `transport` is encrypted."""
    return transport.get_extra_info("sslcontext") is not None


def write_secured(transport: asyncio.Transport, parts: Iterable[bytes | bytearray | memoryview]) -> None:
    """Write `parts` to a transport with TLS, in pieces. Stop if the transport begins to close."""
    for piece in _split_pieces(parts):
        if transport.is_closing():
            return
        transport.write(piece)


def _split_pieces(parts: Iterable[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    """Yield the bytes of `parts` in pieces of `PIECE_BYTES`, the last of which may be smaller."""
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
