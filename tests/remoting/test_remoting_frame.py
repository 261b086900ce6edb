"""Frames: cut wherever TCP likes, limited in size, and never anything but `FrameError` for garbage."""

import tracemalloc

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


@given(st.lists(frames, max_size=8), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_they_are_cut(sent, size):
    data = b"".join(join_frame(frame.serialize_type, frame.header, frame.body) for frame in sent)
    assert decode_in_pieces(data, size) == (sent, None)


@given(st.binary(max_size=200))
def test_garbage_gives_the_same_whole_and_byte_by_byte(data):
    whole, whole_error = decode_in_pieces(data, max(1, len(data)))
    bytewise, bytewise_error = decode_in_pieces(data, 1)
    assert whole == bytewise
    assert (whole_error is None) == (bytewise_error is None)


@given(st.lists(frames, max_size=4), st.binary(min_size=8, max_size=8).filter(lambda data: data[0] > 1))
def test_frames_before_a_bad_one_are_handed_out_first(sent, bad):
    data = b"".join(join_frame(frame.serialize_type, frame.header, frame.body) for frame in sent)
    for size in (1, len(data + bad)):
        found, error = decode_in_pieces(data + bad, size)
        assert found == sent
        assert error is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", "below 4"),
        (b"\x7f\xff\xff\xff\x00\x00\x00\x00", "larger than the limit"),
        (b"\x00\x00\x00\x08\x02\x00\x00\x00\x00\x00\x00\x00", "serialize type 2"),
        (b"\x00\x00\x00\x08\x00\x00\x00\x05\x00\x00\x00\x00", "header length 5 exceeds"),
    ],
)
def test_a_violation_says_what_is_wrong_and_stays(data, text):
    decoder = FrameDecoder()
    decoder.receive_data(data)
    for _ in range(2):
        with pytest.raises(FrameError, match=text):
            decoder.next_frame()


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come():
    decoder = FrameDecoder(max_frame=1000)
    decoder.receive_data((1001).to_bytes(4, "big"))
    with pytest.raises(FrameError, match="1001"):
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
    """As a list of them it would take forty times as much."""
    frame = join_frame(0, b"h", bytes(200_000))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for byte in frame[:-1]:
            decoder.receive_data(bytes((byte,)))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1.5 * len(frame)
    assert (decoder.buffered_bytes, decoder.next_frame()) == (len(frame) - 1, None)
    assert decoder.missing_bytes == 1
    decoder.receive_data(frame[-1:])
    assert decoder.next_frame() == Frame(0, b"h", bytes(200_000))


def test_frames_that_were_handed_out_are_kept_no_longer():
    decoder = FrameDecoder()
    decoder.receive_data(join_frame(0, b"", bytes(1_000_000)))
    tracemalloc.start()
    try:
        assert decoder.next_frame() is not None
        assert decoder.next_frame() is None
        decoder.receive_data(join_frame(0, b"", bytes(1_000_000)))
        assert decoder.next_frame() is not None
        assert decoder.next_frame() is None
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 100_000


def test_splitting_reports_bounds_and_the_unfinished_rest():
    first, second = join_frame(0, b"head", b"body"), join_frame(1, b"x")
    buffer = bytearray(b"??" + first + second + first[:6])
    found, consumed = split_frames(buffer, len(buffer), 2)
    assert [(buffer[h:b], buffer[b:e], kind) for h, b, e, kind in found] == [(b"head", b"body", 0), (b"x", b"", 1)]
    assert buffer[consumed:] == first[:6]
    assert pending_frame_bytes(buffer, consumed, len(buffer)) == len(first)
    assert pending_frame_bytes(buffer, len(buffer) - 3, len(buffer)) == 0
