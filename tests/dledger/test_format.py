"""The bytes of the log: golden entries decode, and no damage passes as intact."""

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import CorruptionError
from dledger.format import (
    BLANK_BYTES,
    HEADER_BYTES,
    blank,
    blank_length,
    encode_command,
    encode_membership,
    iter_commands,
    link,
    only_kind,
    parse_entry,
    parse_run,
    seal,
)
from dledger.types import EntryKind, EntryMeta, Membership, ReplicaId

GOLDEN = bytes.fromhex(
    "00000001 00000035 0000000000000007 0000000000000003 000000000000100000000002 3b3d9367 8c5999d2 00000005 68656c6f21"
)
"""A group of term 3 at index 7, position 4096, behind chain crc 1. Two bytes of its body `helo!` are commands."""


def sealed(
    body: bytes, *, kind: int = EntryKind.GROUP, index=0, term=1, position=0, channel=0, chain=0
) -> tuple[EntryMeta, bytes]:
    data = bytearray(HEADER_BYTES) + body
    return seal(data, kind, index, term, position, channel, chain), bytes(data)


def run_of(*bodies: bytes, index: int = 0, position: int = 0, chain: int = 0) -> tuple[list[EntryMeta], bytes]:
    metas, parts = [], []
    for body in bodies:
        meta, data = sealed(body, index=index, position=position, chain=chain)
        index, position, chain = index + 1, meta.end, meta.chain_crc
        metas.append(meta)
        parts.append(data)
    return metas, b"".join(parts)


def test_the_golden_entry():
    meta, data = sealed(b"helo!", index=7, term=3, position=4096, channel=2, chain=1)
    assert data == GOLDEN
    assert meta == EntryMeta(7, 3, 4096, 53, EntryKind.GROUP, 2, 0x3B3D9367)
    assert parse_entry(GOLDEN, 0, len(GOLDEN), 1) == meta


def test_the_chain_crc_follows_the_format():
    """The chain crc is crc32 over the previous chain crc, then the header without the chain crc's own field."""
    _, data = sealed(b"body", index=9, term=4, position=64, chain=0xDEADBEEF)
    expected = zlib.crc32(struct.pack(">I", 0xDEADBEEF) + data[:36] + data[40:48])
    assert struct.unpack_from(">I", data, 36)[0] == expected == link(data, 0, 0xDEADBEEF)
    assert struct.unpack_from(">I", data, 40)[0] == zlib.crc32(b"body")


def test_every_flipped_bit_is_detected():
    for bit in range(len(GOLDEN) * 8):
        damaged = bytearray(GOLDEN)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            parsed = parse_entry(damaged, 0, len(damaged), 1)
        except CorruptionError:
            continue
        assert parsed is None, f"bit {bit} went unnoticed"
        assert bit // 8 in range(4, 8) or bit // 8 in range(44, 48), "only a length may ask for more bytes"


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_a_run_parses_into_the_sealed_entries(bodies: list[bytes], chain: int):
    metas, data = run_of(*bodies, index=5, position=320, chain=chain)
    assert parse_run(data, chain) == metas
    assert parse_run(memoryview(bytearray(data)), None) == metas


@given(st.binary(max_size=300), st.none() | st.integers(0, 2**32 - 1))
def test_garbage_is_corruption_and_nothing_else(garbage: bytes, chain: int | None):
    for parse in (lambda: parse_run(garbage, chain), lambda: list(iter_commands(garbage))):
        try:
            parse()
        except CorruptionError:
            pass


@given(st.integers(0, HEADER_BYTES + 4))
def test_an_entry_that_is_not_all_there_is_no_corruption(size: int):
    assert parse_entry(GOLDEN[:size], 0, size, 1) is None


def test_a_run_is_contiguous():
    metas, data = run_of(b"one", b"two", b"three")
    first, second = data[: metas[0].size], data[metas[0].size : metas[1].end]
    with pytest.raises(CorruptionError, match="chain crc"):
        parse_run(data[metas[0].size :], 0)
    with pytest.raises(CorruptionError, match="chain crc"):
        parse_run(first + data[metas[1].end :], 0)
    with pytest.raises(CorruptionError, match="ends inside an entry"):
        parse_run(first + second[:-1], 0)
    _, elsewhere = sealed(b"two", index=1, position=4096, chain=metas[0].chain_crc)
    with pytest.raises(CorruptionError, match="does not continue"):
        parse_run(first + elsewhere, 0)


def test_a_chain_of_another_history_does_not_join():
    """The same entry behind another predecessor is another entry."""
    (_, ours), _ = run_of(b"ours", b"next")
    (_, theirs), data = run_of(b"them", b"next")
    assert ours.chain_crc != theirs.chain_crc
    assert msgspec.structs.replace(ours, chain_crc=theirs.chain_crc) == theirs
    with pytest.raises(CorruptionError):
        parse_run(data[theirs.position :], sealed(b"ours")[0].chain_crc)


def test_a_membership_entry_carries_its_membership():
    membership = Membership((ReplicaId("a", "1"), ReplicaId("b", "2")), (ReplicaId("c", "3"),))
    _, data = sealed(encode_membership(membership), kind=EntryKind.MEMBERSHIP)
    meta = parse_entry(data, 0, len(data), 0)
    assert meta is not None
    assert meta.membership == membership
    _, nonsense = sealed(b"\xc1", kind=EntryKind.MEMBERSHIP)
    with pytest.raises(CorruptionError, match="no membership body"):
        parse_entry(nonsense, 0, len(nonsense), 0)


@given(st.integers(BLANK_BYTES, 5000))
def test_a_blank_says_how_much_is_left(left: int):
    data = blank(left)
    assert data[:8] == b"\xff\xff\xff\xff" + left.to_bytes(4)
    assert data[8:] == bytes(left - 8)
    assert blank_length(data, 0, len(data)) == left
    assert blank_length(GOLDEN, 0, len(GOLDEN)) is blank_length(blank(8), 0, 7) is None
    with pytest.raises(CorruptionError):
        parse_run(data.ljust(HEADER_BYTES, b"\0"), None)


@given(st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=50)), max_size=10))
def test_commands_come_back_in_order(commands: list[tuple[int, bytes]]):
    section = b"".join(encode_command(kind, payload) for kind, payload in commands)
    assert [(kind, bytes(payload)) for kind, payload in iter_commands(section)] == commands
    assert only_kind(section) == (commands[0][0] if len(commands) == 1 else None)


def test_a_command_s_layout():
    assert encode_command(16, b"abc") == b"\x00\x10\x00\x00\x00\x03abc"
    with pytest.raises(CorruptionError, match="claims 3 bytes, 2 are left"):
        list(iter_commands(b"\x00\x10\x00\x00\x00\x03ab"))
    with pytest.raises(CorruptionError, match="inside a command header"):
        list(iter_commands(b"\x00\x10\x00"))
    assert only_kind(b"\x00\x10\x00\x00\x00\x03ab") is only_kind(b"\x00\x10\x00") is None
