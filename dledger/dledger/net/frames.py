"""Frames of a peer connection.

    offset  size  field
         0     4  length         bytes after these four: 4 + header length + payload length
         4     1  kind           `FrameKind`
         5     3  header length  at most 64 KiB
         8     h  header         MessagePack
     8 + h     p  payload        raw bytes, at most 16 MiB

Integers are big-endian. The codec is pure. For invalid bytes it raises `PeerProtocolError` and nothing else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from dledger.net.transport import PeerProtocolError
from dledger_base.invariants import invariant

PREFIX_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 64 << 10
MAX_PAYLOAD_BYTES: Final = 16 << 20
MAX_FRAME_BYTES: Final = PREFIX_BYTES + MAX_HEADER_BYTES + MAX_PAYLOAD_BYTES
STAGING_BYTES: Final = 256 << 10
"""Number of bytes that a connection reads at once. An idle connection holds so much memory after its first read."""
MAX_KEPT_STAGING_BYTES: Final = 4 << 20
"""Maximum size in bytes of a staging buffer that is kept after the frame that made it so large."""

T = TypeVar("T")
_PREFIX = struct.Struct(">II")
_HEADER_LENGTH_MASK = 0xFFFFFF
_LENGTH_BYTES = 4
_KIND_SHIFT = 24


class FrameKind(IntEnum):
    """Kind of a frame. 0 is never used, so that zeros are no frame."""

    CHALLENGE = 1
    PROOF = 2
    HELLO = 3
    WELCOME = 4
    REFUSED = 5
    READY = 6
    MESSAGE = 7
    """Header: a consensus message; payload: the raw entries of an append."""
    DATA = 8
    """Header: a channel number; payload: opaque bytes."""


_KINDS = frozenset(int(kind) for kind in FrameKind)


class Frame(NamedTuple):
    """A decoded frame; `kind` is a value of `FrameKind`."""

    kind: int
    header: bytes
    payload: bytes


def encode_head(kind: FrameKind, header: bytes, payload_bytes: int = 0) -> bytes:
    """Return prefix and header of a frame. Exactly `payload_bytes` of payload must follow on the wire."""
    header_bytes = len(header)
    invariant(header_bytes <= MAX_HEADER_BYTES, "a frame's header fits", header_bytes=header_bytes)
    invariant(payload_bytes <= MAX_PAYLOAD_BYTES, "a frame's payload fits", payload_bytes=payload_bytes)
    length = PREFIX_BYTES - _LENGTH_BYTES + header_bytes + payload_bytes
    return _PREFIX.pack(length, kind << _KIND_SHIFT | header_bytes) + header


def decode_header(frame: Frame, decode: Callable[[bytes], T]) -> T:
    """Decode the header of a frame with a msgspec decoder. Raises `PeerProtocolError` if the header does not fit."""
    try:
        return decode(frame.header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is not UTF-8
        raise PeerProtocolError(f"unreadable header of {FrameKind(frame.kind).name}: {error}") from error


class FrameReader:
    """Cuts a byte stream into frames.

    The caller writes into `get_buffer()`, reports the size with `received`, and takes frames until `next_frame` returns
    None. Bytes are written to one reused staging buffer, which grows to the size of a larger frame once its prefix is
    read. So every payload is copied exactly once, into the bytes object that is returned, however many pieces it
    arrived in.

    `max_frame_bytes` bounds a whole frame, and so the memory that the other end can make this end hold.
    """

    __slots__ = ("_buffer", "_end", "_start", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray(0)
        self._start = 0
        """Offset of the first byte that belongs to no returned frame."""
        self._end = 0
        """Offset of the first byte that was not received yet."""

    def get_buffer(self) -> memoryview:
        """Return the buffer to write to next. It is never empty once all whole frames were taken."""
        if self._end == len(self._buffer):
            self._make_room(STAGING_BYTES)
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> None:
        """Note that `size` bytes were written to the start of the last `get_buffer()`."""
        self._end += size
        invariant(self._end <= len(self._buffer), "no more is received than there was room for", size=size)

    def unread(self, limit: int) -> bytes:
        """Return the first bytes that belong to no returned frame, at most `limit`."""
        return bytes(self._buffer[self._start : min(self._end, self._start + limit)])

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None if more bytes are needed.

        Raises `PeerProtocolError` as soon as the prefix shows that no frame follows. The stream cannot be continued
        then.
        """
        start = self._start
        available = self._end - start
        if available < PREFIX_BYTES:
            return None
        length, kind_and_header = _PREFIX.unpack_from(self._buffer, start)
        frame_bytes = _LENGTH_BYTES + length
        kind = kind_and_header >> _KIND_SHIFT
        header_bytes = kind_and_header & _HEADER_LENGTH_MASK
        self._check(kind, frame_bytes, header_bytes)
        if available < frame_bytes:
            if len(self._buffer) - start < frame_bytes:
                self._make_room(frame_bytes)
            return None
        payload_at = start + PREFIX_BYTES + header_bytes
        end = start + frame_bytes
        with memoryview(self._buffer) as view:
            frame = Frame(kind, bytes(view[start + PREFIX_BYTES : payload_at]), bytes(view[payload_at:end]))
        self._start = end
        if end == self._end:
            self._start = self._end = 0
            if len(self._buffer) > MAX_KEPT_STAGING_BYTES:
                self._buffer = bytearray(0)
        return frame

    def _check(self, kind: int, frame_bytes: int, header_bytes: int) -> None:
        if kind not in _KINDS:
            raise PeerProtocolError(f"frame kind {kind} found, 1 to {max(_KINDS)} expected")
        if header_bytes > MAX_HEADER_BYTES:
            raise PeerProtocolError(f"frame header of {header_bytes} bytes found, at most {MAX_HEADER_BYTES} expected")
        if frame_bytes > self.max_frame_bytes:
            raise PeerProtocolError(f"frame of {frame_bytes} bytes found, at most {self.max_frame_bytes} expected")
        if frame_bytes < PREFIX_BYTES + header_bytes:
            raise PeerProtocolError(f"frame of {frame_bytes} bytes found, with a header of {header_bytes} bytes")

    def _make_room(self, frame_bytes: int) -> None:
        """Move the unread bytes to the start of a buffer that holds at least `frame_bytes`.

        A buffer that is too small is replaced, because a bytearray cannot be resized while the event loop exports it.
        """
        unread = self._end - self._start
        if len(self._buffer) < max(frame_bytes, STAGING_BYTES):
            buffer = bytearray(max(frame_bytes, STAGING_BYTES))
            buffer[:unread] = memoryview(self._buffer)[self._start : self._end]
            self._buffer = buffer
        else:
            self._buffer[:unread] = self._buffer[self._start : self._end]
        self._start = 0
        self._end = unread
