"""The frames of a peer connection.

    offset  size  field
         0     4  length         bytes after these four: 4 + header length + payload length
         4     1  kind           `FrameKind`
         5     3  header length  at most 64 KiB
         8     h  header         MessagePack
     8 + h     p  payload        raw bytes, at most 16 MiB

Integers are big-endian.  The codec is pure; whatever bytes it is fed, `PeerProtocolError` is all it raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from dledger.invariants import invariant
from dledger.net.errors import PeerProtocolError

PREFIX_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 64 << 10
MAX_PAYLOAD_BYTES: Final = 16 << 20
MAX_FRAME_BYTES: Final = PREFIX_BYTES + MAX_HEADER_BYTES + MAX_PAYLOAD_BYTES
STAGING_BYTES: Final = 256 << 10
"""What a connection reads at once; also the memory that an idle one holds after its first read."""
MAX_KEPT_STAGING_BYTES: Final = 4 << 20
"""A staging buffer that one frame made larger than this is given back after it."""

T = TypeVar("T")
_PREFIX = struct.Struct(">II")
_HEADER_LENGTH_MASK = 0xFFFFFF
_LENGTH_BYTES = 4
_KIND_SHIFT = 24


class FrameKind(IntEnum):
    """What a frame is.  0 is never used, so that zeros are no frame."""

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
    """Prefix and header of a frame; exactly `payload_bytes` of payload must follow on the wire."""
    header_bytes = len(header)
    invariant(header_bytes <= MAX_HEADER_BYTES, "a frame's header fits", header_bytes=header_bytes)
    invariant(payload_bytes <= MAX_PAYLOAD_BYTES, "a frame's payload fits", payload_bytes=payload_bytes)
    length = PREFIX_BYTES - _LENGTH_BYTES + header_bytes + payload_bytes
    return _PREFIX.pack(length, kind << _KIND_SHIFT | header_bytes) + header


def decode_header(frame: Frame, decode: Callable[[bytes], T]) -> T:
    """The header of a frame by a msgspec decoder; raises `PeerProtocolError` if it is not what the decoder knows."""
    try:
        return decode(frame.header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is no UTF-8
        raise PeerProtocolError(f"unreadable header of {FrameKind(frame.kind).name}: {error}") from error


class FrameReader:
    """Cuts a byte stream into frames.

    The caller writes into `get_buffer()`, says how much with `received`, and takes frames until `next_frame` returns
    None.  Bytes land in one reused staging buffer, which grows to the size of a larger frame once its prefix is read:
    every payload is copied once, into the bytes object that is handed out, whatever pieces it arrived in.

    `max_frame_bytes` bounds a whole frame, and with it the memory that the other end can make this one hold.
    """

    __slots__ = ("_buffer", "_end", "_start", "max_frame_bytes")

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._buffer = bytearray(0)
        self._start = 0
        """First byte of the staging buffer that belongs to no frame handed out."""
        self._end = 0
        """First byte that was not received yet."""

    def get_buffer(self) -> memoryview:
        """Where to write next; never empty once all whole frames were taken."""
        if self._end == len(self._buffer):
            self._make_room(STAGING_BYTES)
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> None:
        """`size` bytes were written to the start of the last `get_buffer()`."""
        self._end += size
        invariant(self._end <= len(self._buffer), "no more is received than there was room for", size=size)

    def unread(self, limit: int) -> bytes:
        """The first bytes that belong to no frame handed out, at most `limit`."""
        return bytes(self._buffer[self._start : min(self._end, self._start + limit)])

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None if more bytes are needed.

        Raises `PeerProtocolError` as soon as the prefix shows that what comes is no frame; the stream cannot be
        continued after that.
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
        """Move what is unread to the start of a buffer that holds at least `frame_bytes`.

        A new buffer replaces one that is too small; a bytearray cannot be resized while the event loop exports it.
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
