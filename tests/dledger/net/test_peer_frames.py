"""The frame codec decodes its own frames, in pieces of any size. Anything else is a protocol error, nothing worse."""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger.core.messages import Message
from dledger.net.frames import (
    MAX_HEADER_BYTES,
    MAX_KEPT_STAGING_BYTES,
    MAX_PAYLOAD_BYTES,
    PREFIX_BYTES,
    STAGING_BYTES,
    Frame,
    FrameKind,
    FrameReader,
    decode_header,
    encode_head,
)
from dledger.net.transport import PeerProtocolError
from dledger_base.invariants import InvariantError

frames = st.builds(Frame, st.sampled_from(FrameKind).map(int), st.binary(max_size=300), st.binary(max_size=2000))


def encode(frame: Frame) -> bytes:
    return encode_head(FrameKind(frame.kind), frame.header, len(frame.payload)) + frame.payload


def feed(reader: FrameReader, data: bytes) -> list[Frame]:
    """Feed `data` to the reader, as much at a time as it takes, and return the frames."""
    out = []
    view = memoryview(data)
    while view:
        buffer = reader.get_buffer()
        size = min(len(buffer), len(view))
        buffer[:size] = view[:size]
        view = view[size:]
        reader.received(size)
        while (frame := reader.next_frame()) is not None:
            out.append(frame)
    return out


def test_the_layout_is_the_documented_one():
    assert encode_head(FrameKind.DATA, b"\x05", 3) + b"abc" == bytes.fromhex(
        "00000008 08 000001 05 616263".replace(" ", "")
    )


@given(st.lists(frames, max_size=8), st.integers(1, 5000))
def test_frames_survive_any_cut(sent, step):
    reader = FrameReader()
    stream = b"".join(map(encode, sent))
    received = [frame for at in range(0, len(stream), step) for frame in feed(reader, stream[at : at + step])]
    assert received == sent


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3 * STAGING_BYTES), min_size=1, max_size=6), st.integers(1, STAGING_BYTES * 2))
def test_frames_around_the_size_of_the_staging_buffer_survive(sizes, step):
    sent = [Frame(FrameKind.MESSAGE, b"h" * (size % 7), bytes([size % 256]) * size) for size in sizes]
    stream = b"".join(map(encode, sent))
    reader = FrameReader()
    received = [frame for at in range(0, len(stream), step) for frame in feed(reader, stream[at : at + step])]
    assert received == sent


@given(st.binary(max_size=4000))
def test_garbage_is_frames_or_a_protocol_error(garbage):
    reader = FrameReader(max_frame_bytes=2000)
    try:
        for frame in feed(reader, garbage):
            assert frame.kind in list(FrameKind)
    except PeerProtocolError:
        pass


@given(st.binary(max_size=200))
def test_garbage_in_a_header_is_a_message_or_a_protocol_error(header):
    try:
        decode_header(Frame(FrameKind.MESSAGE, header, b""), msgspec.msgpack.Decoder(Message).decode)
    except PeerProtocolError:
        pass


@pytest.mark.parametrize("header", [b"\x91" * 60_000, b"\x92\xa4voted" + b"\x91" * 60_000, b"\x91\xa4\xff\xfe\xfd\xfc"])
def test_hostile_headers_are_protocol_errors(header):
    with pytest.raises(PeerProtocolError, match="MESSAGE"):
        decode_header(Frame(FrameKind.MESSAGE, header, b""), msgspec.msgpack.Decoder(Message).decode)


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        (struct.pack(">II", 4, 0), "kind 0"),
        (struct.pack(">II", 4, 99 << 24), "kind 99"),
        (struct.pack(">II", 0xFFFFFFFF, 7 << 24), "at most 1000"),
        (struct.pack(">II", 998, 7 << 24), "at most 1000"),
        (struct.pack(">II", 3, 7 << 24), "frame of 7 bytes"),
        (struct.pack(">II", 10, 7 << 24 | 7), "header of 7 bytes"),
        (struct.pack(">II", 1 << 20, 7 << 24 | MAX_HEADER_BYTES + 1), "at most 65536"),
        (b"GET / HTTP/1.1\r\n", "kind"),
    ],
)
def test_a_bad_frame_prefix_is_refused_before_memory_is_reserved(prefix, text):
    reader = FrameReader(max_frame_bytes=1000)
    with pytest.raises(PeerProtocolError, match=text):
        feed(reader, prefix)
    assert len(reader._buffer) <= STAGING_BYTES


def test_the_largest_frame_passes_and_its_buffer_is_given_back():
    reader = FrameReader()
    frame = Frame(FrameKind.MESSAGE, bytes(MAX_HEADER_BYTES), bytes(MAX_PAYLOAD_BYTES))
    assert feed(reader, encode(frame)) == [frame]
    assert len(reader._buffer) <= MAX_KEPT_STAGING_BYTES


def test_larger_frames_are_a_mistake_of_the_sender():
    with pytest.raises(InvariantError):
        encode_head(FrameKind.MESSAGE, b"", MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(InvariantError):
        encode_head(FrameKind.MESSAGE, bytes(MAX_HEADER_BYTES + 1))


def test_a_large_frame_is_received_in_place():
    reader = FrameReader()
    payload = bytes(4_000_000)
    stream = encode_head(FrameKind.MESSAGE, b"", len(payload)) + payload
    assert feed(reader, stream[:PREFIX_BYTES]) == []
    assert len(reader.get_buffer()) == len(payload), "one read can take all that is missing"
