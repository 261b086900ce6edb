"""Cutting a byte stream into frames.

| bytes | field | rule |
|---|---|---|
| 4 | total length | of what follows this field: 4 + header length + body length |
| 1 | serialize type | 0 JSON header, 1 binary header |
| 3 | header length | |
| n | header | |
| m | body | opaque |

Integers are big-endian. A frame that breaks a rule raises `FrameError` and nothing else; the connection is then of no
further use. Format: RocketMQ's remoting protocol.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from .errors import FrameError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Default upper limit of a frame's total length, RocketMQ's `com.rocketmq.remoting.frameMaxLength`."""

MAX_HEADER_BYTES: Final = (1 << 24) - 1

PREFIX_BYTES: Final = 8
"""Total length and header word."""

MAX_PIECES: Final = 512
"""So many small pieces of a frame are joined before the next one comes."""

_PREFIX: Final = Struct(">II")
_LENGTH: Final = Struct(">I")


class SerializeType(IntEnum):
    """How a frame's header is written. An answer uses the type of its request."""

    JSON = 0
    ROCKETMQ = 1


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame as it came: the header is not parsed yet."""

    serialize_type: int
    header: bytes
    body: bytes


FrameBounds: TypeAlias = tuple[int, int, int, int]
"""(header start, body start, frame end, serialize type), positions in the buffer given to `split_frames`."""


def split_frames(
    buffer: Buffer, end: int, start: int = 0, max_frame: int = MAX_FRAME_BYTES
) -> tuple[list[FrameBounds], int]:
    """Find the complete frames in `buffer[start:end]`: their bounds, and the position after the last of them.

    Bytes from that position on belong to a frame that is not complete yet, or that breaks the protocol. Only a first
    frame that breaks it raises `FrameError`: the sound frames before a bad one are handed out, and a call that starts
    behind them raises.
    """
    frames: list[FrameBounds] = []
    add = frames.append
    unpack = _PREFIX.unpack_from
    position = start
    while end - position >= PREFIX_BYTES:
        total, word = unpack(buffer, position)
        header_length = word & 0xFFFFFF
        if total > max_frame or header_length > total - 4 or word > 0x1FFFFFF:
            if frames:
                break
            raise _violation(total, word, max_frame)
        frame_end = position + 4 + total
        if frame_end > end:
            return frames, position
        header_start = position + PREFIX_BYTES
        add((header_start, header_start + header_length, frame_end, word >> 24))
        position = frame_end
    if not frames and end - position >= 4:
        (total,) = _LENGTH.unpack_from(buffer, position)
        if total > max_frame or total < 4:
            raise _violation(total, 0, max_frame)
    return frames, position


def pending_frame_bytes(buffer: Buffer, position: int, end: int) -> int:
    """The full size of the frame that starts at `position`, its length field included; 0 if that is not known yet."""
    if end - position < 4:
        return 0
    return 4 + int(_LENGTH.unpack_from(buffer, position)[0])


def join_frame(serialize_type: int, header: bytes, body: Buffer = b"") -> bytes:
    """A whole frame. Raises `FrameError` if the header or the frame is larger than the format or a receiver allows."""
    return b"".join((frame_prefix(serialize_type, len(header), len(body)), header, body))


def frame_prefix(serialize_type: int, header_bytes: int, body_bytes: int) -> bytes:
    """The 8 bytes before a header, for a sender that writes header and body separately. Raises `FrameError`."""
    total = 4 + header_bytes + body_bytes
    if header_bytes > MAX_HEADER_BYTES or total > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {total} bytes is larger than {MAX_FRAME_BYTES}")
    return _PREFIX.pack(total, serialize_type << 24 | header_bytes)


class Pieces:
    """What has arrived of a frame, in the order of coming, and joined when it is whole.

    That takes time linear in its size.  Small pieces are joined as they come, so that a frame that arrives byte by byte
    takes little more memory than another one.
    """

    __slots__ = ("_joined", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._joined = 0
        """How many of them are made of others."""

    def add(self, piece: bytes) -> None:
        """Put a piece behind the others."""
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) - self._joined == MAX_PIECES:
            pieces[self._joined :] = (b"".join(pieces[self._joined :]),)
            self._joined += 1

    def take(self) -> bytes:
        """All pieces as one; none are left."""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self.clear()
        return whole

    def clear(self) -> None:
        """Forget all pieces."""
        self._pieces.clear()
        self._joined = 0


class FrameDecoder:
    """Feed it what the socket brought with `receive_data`; take complete frames with `next_frame` until it gives None.

    Frames before a violation are still given out; from then on every call raises its `FrameError`.
    """

    def __init__(self, max_frame: int = MAX_FRAME_BYTES) -> None:
        self._max_frame = max_frame
        self._pieces = Pieces()
        self._buffered = 0
        self._needed = 4
        self._buffer = b""
        self._ready: list[FrameBounds] = []
        self._next = 0
        self._error: FrameError | None = None

    @property
    def buffered_bytes(self) -> int:
        """What has been received and does not belong to a frame that is complete, as far as `next_frame` has looked."""
        return self._buffered

    @property
    def missing_bytes(self) -> int:
        """At least so many more bytes are needed for another frame; more than 0 once `next_frame` has given None."""
        return self._needed - self._buffered

    def receive_data(self, data: Buffer) -> None:
        """Store received bytes; nothing is parsed before `next_frame`."""
        if data:
            self._pieces.add(bytes(data))
            self._buffered += len(data)

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None if more bytes are needed. Raises `FrameError`."""
        if self._next == len(self._ready):
            if self._error is None:
                self._split()
            else:
                self._ready, self._next = [], 0
            if not self._ready:
                if self._error is not None:
                    raise self._error
                return None
        header_start, body_start, frame_end, serialize_type = self._ready[self._next]
        self._next += 1
        return Frame(serialize_type, self._buffer[header_start:body_start], self._buffer[body_start:frame_end])

    def _split(self) -> None:
        """Replace the used-up frames by those that are complete now, if enough has come to complete one."""
        self._ready, self._next = [], 0
        self._buffer = b""
        if self._buffered < self._needed:
            return
        self._buffer = buffer = self._pieces.take()
        end = len(buffer)
        position = 0
        try:
            self._ready, position = split_frames(buffer, end, 0, self._max_frame)
            if self._ready:
                split_frames(buffer, end, position, self._max_frame)
        except FrameError as error:
            self._error = error
        rest = buffer[position:]
        if rest:
            self._pieces.add(rest)
        self._buffered = len(rest)
        self._needed = max(pending_frame_bytes(rest, 0, len(rest)), len(rest) + 1)


def _violation(total: int, word: int, max_frame: int) -> FrameError:
    header_length = word & 0xFFFFFF
    if total > max_frame:
        return FrameError(f"frame of {total} bytes is larger than the limit of {max_frame}")
    if total < 4:
        return FrameError(f"frame length {total} is below 4")
    if word >> 24 > SerializeType.ROCKETMQ:
        return FrameError(f"serialize type {word >> 24} is neither 0 (JSON) nor 1 (binary)")
    return FrameError(f"header length {header_length} exceeds the frame, which has {total - 4} bytes after the prefix")
