"""Frames: cuts a byte stream into frames, and joins them.

| bytes | field | rule |
|---|---|---|
| 4 | total length | of what follows this field: 4 + header length + body length |
| 1 | serialize type | 0 JSON header, 1 binary header |
| 3 | header length | |
| n | header | |
| m | body | opaque |

Integers are big-endian. A frame that breaks a rule raises only `FrameError`. Its connection must then be closed.
Format: RocketMQ's remoting protocol.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

import msgspec

from .errors import FrameError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Default maximum of a frame's total length in bytes, RocketMQ's `com.rocketmq.remoting.frameMaxLength`."""

MAX_HEADER_BYTES: Final = (1 << 24) - 1

PREFIX_BYTES: Final = 8
"""Size of the total length and the header word, in bytes."""

MAX_PIECES: Final = 512
"""Maximum number of small pieces of a frame that are kept apart. Once there are that many they are joined."""

CUT_BYTES: Final = 1 << 10
"""Size of the part of a buffer that is cut into frames at a time, unless the first frame is larger, in bytes."""

_PREFIX: Final = Struct(">II")
_LENGTH: Final = Struct(">I")


class SerializeType(IntEnum):
    """Serialization of a frame's header. An answer uses the type of its request."""

    JSON = 0
    ROCKETMQ = 1


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One frame, its header not parsed yet."""

    serialize_type: int
    header: bytes
    body: bytes


FrameBounds: TypeAlias = tuple[int, int, int, int]
"""(header start, body start, frame end, serialize type): positions in the buffer given to `split_frames`."""


def split_frames(
    buffer: Buffer, end: int, start: int = 0, max_frame: int = MAX_FRAME_BYTES
) -> tuple[list[FrameBounds], int]:
    """Return the bounds of the complete frames in `buffer[start:end]`, and the position after the last of them.

    Bytes from that position on belong to a frame that is incomplete or breaks the protocol. `FrameError` is raised only
    if the first frame breaks it. Sound frames before a bad one are returned first; the next call, which starts behind
    them, raises.
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
    """Return the full size of the frame that starts at `position`, with its length field; 0 if that is not known
    yet.
    """
    if end - position < 4:
        return 0
    return 4 + int(_LENGTH.unpack_from(buffer, position)[0])


def join_frame(serialize_type: int, header: bytes, body: Buffer = b"") -> bytes:
    """Return a whole frame. Raises `FrameError` if the header or the frame is larger than format or receivers allow."""
    return b"".join((frame_prefix(serialize_type, len(header), len(body)), header, body))


def frame_prefix(serialize_type: int, header_bytes: int, body_bytes: int) -> bytes:
    """Return the 8 bytes before a header, for a sender that writes header and body separately. Raises `FrameError`."""
    total = 4 + header_bytes + body_bytes
    if header_bytes > MAX_HEADER_BYTES or total > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {total} bytes is larger than {MAX_FRAME_BYTES}")
    return _PREFIX.pack(total, serialize_type << 24 | header_bytes)


class Pieces:
    """Parts of a frame that have arrived, in their order, to be joined when the frame is complete.

    Joining takes time linear in the frame's size. Small pieces are joined as they come: a frame that arrives byte by
    byte thus takes little more memory than others.
    """

    __slots__ = ("_joined", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._joined = 0
        """Number of pieces that were joined from smaller pieces."""

    def add(self, piece: bytes) -> None:
        """Append a piece."""
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) - self._joined == MAX_PIECES:
            pieces[self._joined :] = (b"".join(pieces[self._joined :]),)
            self._joined += 1

    def take(self) -> bytes:
        """Return all pieces as one and forget them."""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self.clear()
        return whole

    def first(self, size: int) -> bytes:
        """Return at most `size` bytes from the beginning; all pieces stay."""
        parts: list[bytes] = []
        for piece in self._pieces:
            parts.append(piece[:size])
            size -= len(piece)
            if size <= 0:
                break
        return b"".join(parts)

    def clear(self) -> None:
        """Forget all pieces."""
        self._pieces.clear()
        self._joined = 0


class FrameDecoder:
    """Decoder of a byte stream: takes bytes with `receive_data`, gives complete frames with `next_frame`, then None.

    Frames before a violation are still returned; from then on every call raises its `FrameError`. Only a few frames are
    cut at a time: the bounds of a small frame take more memory than the frame.
    """

    def __init__(self, max_frame: int = MAX_FRAME_BYTES) -> None:
        self._max_frame = max_frame
        self._pieces = Pieces()
        """Bytes behind `_buffer`."""
        self._pieces_bytes = 0
        self._needed = 4
        """Minimum number of bytes in the pieces for another frame, once `_buffer` is used up."""
        self._buffer = b""
        self._uncut = 0
        """Position in `_buffer` behind the frames in `_ready`."""
        self._returned = 0
        """Position in `_buffer` behind the last returned frame."""
        self._ready: list[FrameBounds] = []
        self._next = 0
        self._error: FrameError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Number of received bytes that belong to no returned frame."""
        return self._pieces_bytes + len(self._buffer) - self._returned

    @property
    def missing_bytes(self) -> int:
        """Minimum number of bytes still needed for another frame; more than 0 once `next_frame` has returned None."""
        return self._needed - self.buffered_bytes

    def receive_data(self, data: Buffer) -> None:
        """Store received bytes. They are parsed by `next_frame`."""
        if data:
            self._pieces.add(bytes(data))
            self._pieces_bytes += len(data)

    def next_frame(self) -> Frame | None:
        """Return the next complete frame, or None if more bytes are needed. Raises `FrameError`."""
        if self._next == len(self._ready):
            self._ready, self._next = [], 0
            if self._error is None:
                self._cut()
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None
        header_start, body_start, frame_end, serialize_type = self._ready[self._next]
        self._next += 1
        self._returned = frame_end
        return Frame(serialize_type, self._buffer[header_start:body_start], self._buffer[body_start:frame_end])

    def _cut(self) -> None:
        """Cut the next frames, if enough bytes have arrived for that."""
        try:
            if self._uncut < len(self._buffer):
                self._cut_buffer()
            elif self._buffer:
                self._buffer, self._uncut, self._returned, self._needed = b"", 0, 0, 4
            if not self._ready and self._pieces_bytes >= self._needed:
                self._buffer, self._uncut, self._returned = self._pieces.take(), 0, 0
                self._pieces_bytes = 0
                self._cut_buffer()
        except FrameError as error:
            self._error = error

    def _cut_buffer(self) -> None:
        """Cut some frames of the buffer. If none is complete, put the rest in front of the pieces."""
        buffer, begin = self._buffer, self._uncut
        window = max(CUT_BYTES, pending_frame_bytes(buffer, begin, len(buffer)))
        end = min(len(buffer), begin + window)
        self._ready, self._uncut = split_frames(buffer, end, begin, self._max_frame)
        if self._ready:
            return
        rest, newer = buffer[self._uncut :], self._pieces.take() if self._pieces_bytes else b""
        for piece in filter(None, (rest, newer)):
            self._pieces.add(piece)
        self._pieces_bytes += len(rest)
        self._buffer, self._uncut, self._returned = b"", 0, 0
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
