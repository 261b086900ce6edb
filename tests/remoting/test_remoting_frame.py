"""Frames arrive in pieces of any size and are limited in size. Garbage raises `FrameError` only."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.errors import FrameError
from dledger_remoting.frame import (
    MAX_FRAME_BYTES,
    Frame,
    FrameDecoder,
    frame_prefix,
    join_frame,
    pending_frame_bytes,
    split_frames,
)

frames = st.builds(Frame, st.sampled_from([0, 1]), st.binary(max_size=40), st.binary(max_size=40))


def wire(*sent: Frame) -> bytes:
    return b"".join(join_frame(frame.serialize_type, frame.header, frame.body) for frame in sent)


@contextmanager
def traced() -> Iterator[Callable[[], tuple[int, int]]]:
    """Trace memory, and provide what returns the bytes that are used now and at most."""
    tracemalloc.start()
    try:
        yield tracemalloc.get_traced_memory
    finally:
        tracemalloc.stop()


def decode_all(decoder: FrameDecoder) -> tuple[list[Frame], str | None]:
    found = []
    try:
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
    except FrameError as error:
        return found, str(error)
    return found, None


def decode_in_pieces(data: bytes, size: int) -> tuple[list[Frame], str | None]:
    decoder = FrameDecoder(max_frame=4096)
    found: list[Frame] = []
    for start in range(0, len(data), size):
        decoder.receive_data(data[start : start + size])
        more, error = decode_all(decoder)
        found += more
        if error is not None:
            return found, error
    return found, None


def test_a_frame_has_the_layout_of_the_protocol():
    assert join_frame(0, b"{}", b"xyz").hex() == "00000009000000027b7d78797a"
    assert join_frame(1, b"ab").hex() == "00000006010000026162"


@given(st.lists(frames, max_size=200), st.lists(st.integers(1, 3_000), min_size=1, max_size=5), st.integers(1, 90))
def test_frames_are_decoded_equal_if_bytes_arrive_between_them(sent, sizes, taken):
    """More bytes may arrive while some frames are not handed out yet."""
    data, decoder, found, at = wire(*sent), FrameDecoder(), [], 0
    for size in cycle(sizes):
        decoder.receive_data(data[at : at + size])
        at += size
        found += filter(None, (decoder.next_frame() for _ in range(taken)))
        assert len(wire(*found)) + decoder.buffered_bytes == min(at, len(data))
        if at >= len(data):
            break
    assert found + decode_all(decoder)[0] == sent


@given(st.lists(frames, max_size=8), st.integers(1, 50))
def test_frames_are_decoded_equal_for_any_split_of_the_bytes(sent, size):
    assert decode_in_pieces(wire(*sent), size) == (sent, None)


@given(st.binary(max_size=200))
def test_garbage_gives_the_same_whole_and_byte_by_byte(data):
    whole, whole_error = decode_in_pieces(data, max(1, len(data)))
    bytewise, bytewise_error = decode_in_pieces(data, 1)
    assert whole == bytewise
    assert (whole_error is None) == (bytewise_error is None)


@given(st.lists(frames, max_size=4), st.binary(min_size=8, max_size=8).filter(lambda data: data[0] > 1))
def test_frames_before_a_bad_one_are_handed_out_first(sent, bad):
    data = wire(*sent) + bad
    for size in (1, len(data)):
        found, error = decode_in_pieces(data, size)
        assert found == sent
        assert error is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", "below 4"),
        (b"\x7f\xff\xff\xff\x00\x00\x00\x00", "larger than the limit"),
        (b"\x00\x00\x00\x08\x02\x00\x00\x00\x00\x00\x00\x00", "serialize type 2"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x05\x00\x00\x00\x00", "header length 5 exceeds"),
        (b"\x00\x00\x03\xe9", "1001"),  # refused before the other bytes come
    ],
)
def test_a_frame_violation_is_explained_and_permanent(data, text):
    decoder = FrameDecoder(max_frame=1000)
    decoder.receive_data(data)
    for _ in range(2):
        with pytest.raises(FrameError, match=text):
            decoder.next_frame()


def test_the_largest_allowed_frame_passes():
    frame = join_frame(0, b"", bytes(MAX_FRAME_BYTES - 4))
    decoder = FrameDecoder()
    for start in range(0, len(frame), 1 << 20):
        decoder.receive_data(frame[start : start + (1 << 20)])
    found = decoder.next_frame()
    assert found is not None
    assert len(found.body) == MAX_FRAME_BYTES - 4
    with pytest.raises(FrameError, match="larger"):
        frame_prefix(0, 0, MAX_FRAME_BYTES - 3)


def test_a_large_frame_in_small_pieces_is_joined_once():
    """Joining at every piece would copy 2 GB here."""
    frame = join_frame(0, b"h", bytes(1 << 20))
    decoder = FrameDecoder()
    for start in range(0, len(frame) - 256, 256):
        decoder.receive_data(frame[start : start + 256])
        assert decoder.next_frame() is None
    decoder.receive_data(frame[-(len(frame) % 256 or 256) :])
    assert decoder.next_frame() is not None


def test_a_frame_in_the_smallest_pieces_takes_little_more_memory_than_its_size():
    """A list of the pieces would take forty times the frame's size."""
    frame = join_frame(0, b"h", bytes(200_000))
    decoder = FrameDecoder()
    with traced() as memory:
        for byte in frame[:-1]:
            decoder.receive_data(bytes((byte,)))
        used, _ = memory()
    assert used < 1.5 * len(frame)
    assert (decoder.buffered_bytes, decoder.next_frame()) == (len(frame) - 1, None)
    assert decoder.missing_bytes == 1
    decoder.receive_data(frame[-1:])
    assert decoder.next_frame() == Frame(0, b"h", bytes(200_000))


def test_many_small_frames_take_little_more_memory_than_their_bytes():
    """The bounds of all frames of a read take ten times as much, for each connection whose requests wait."""
    frame = join_frame(0, b'{"code":1}')
    count = (256 << 10) // len(frame)
    data, decoder = frame * count, FrameDecoder()
    with traced() as memory:
        decoder.receive_data(data[:-1])
        assert decoder.next_frame() is not None
        assert decoder.buffered_bytes == len(data) - 1 - len(frame)
        decoder.receive_data(data[-1:])
        assert decoder.next_frame() is not None
        _, used = memory()
    assert used < 1.5 * len(data)
    assert len(decode_all(decoder)[0]) == count - 2
    assert (decoder.buffered_bytes, decoder.missing_bytes) == (0, 4)


def test_frames_that_were_handed_out_are_kept_no_longer():
    decoder = FrameDecoder()
    decoder.receive_data(join_frame(0, b"", bytes(1_000_000)))
    with traced() as memory:
        assert len(decode_all(decoder)[0]) == 1
        decoder.receive_data(join_frame(0, b"", bytes(1_000_000)))
        assert len(decode_all(decoder)[0]) == 1
        used, _ = memory()
    assert used < 100_000


def test_splitting_reports_bounds_and_the_unfinished_rest():
    first, second = join_frame(0, b"head", b"body"), join_frame(1, b"x")
    buffer = bytearray(b"??" + first + second + first[:6])
    found, consumed = split_frames(buffer, len(buffer), 2)
    assert [(buffer[h:b], buffer[b:e], kind) for h, b, e, kind in found] == [(b"head", b"body", 0), (b"x", b"", 1)]
    assert buffer[consumed:] == first[:6]
    assert pending_frame_bytes(buffer, consumed, len(buffer)) == len(first)
    assert pending_frame_bytes(buffer, len(buffer) - 3, len(buffer)) == 0
