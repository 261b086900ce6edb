"""The handshake: only two holders of the secret, who mean each other, come through."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.net.errors import AuthenticationError, HelloRejectedError, PeerError, PeerProtocolError
from dledger.net.frames import Frame, FrameKind, FrameReader, encode_head
from dledger.net.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, Hello
from dledger.types import Lane

SECRET = b"sixteen bytes or more"
A = Hello(1, "cluster", "group", 1 << 30, "a", "a-1", Lane.BULK, "host-a", 10912)
B = msgspec.structs.replace(A, node_id="b", incarnation="b-1", lane=Lane.CONTROL, host="host-b")


def cut(data: bytes) -> list[Frame]:
    reader = FrameReader(MAX_HANDSHAKE_FRAME_BYTES)
    reader.get_buffer()[: len(data)] = data
    reader.received(len(data))
    return list(iter(reader.next_frame, None))


def run(dialler: Handshake, acceptor: Handshake) -> list[bytes]:
    """Carry bytes to and fro until neither side has more to say; returns all that was said."""
    said = []
    to_dialler, to_acceptor = acceptor.start(), dialler.start()
    while to_dialler or to_acceptor:
        said += [to_dialler, to_acceptor]
        answers = b"".join(dialler.receive(frame) for frame in cut(to_dialler))
        to_dialler = b"".join(acceptor.receive(frame) for frame in cut(to_acceptor))
        to_acceptor = answers
    return said


def dial(hello: Hello = A, secret: bytes = SECRET, expected: str = "b") -> Handshake:
    return Handshake.dial(hello, secret, b"d" * 32, expected)


def accept(hello: Hello = B, secret: bytes = SECRET) -> Handshake:
    return Handshake.accept(hello, secret, b"a" * 32)


def test_two_holders_of_the_secret_learn_who_the_other_is():
    dialler, acceptor = dial(), accept()
    run(dialler, acceptor)
    assert acceptor.peer == A
    assert dialler.peer == msgspec.structs.replace(B, lane=Lane.BULK)
    assert dialler.error is None
    assert acceptor.error is None


def test_a_wrong_secret_is_refused_by_the_acceptor_who_has_proven_nothing():
    dialler, acceptor = dial(secret=b"another secret of a group"), accept()
    said = run(dialler, acceptor)
    assert isinstance(acceptor.error, AuthenticationError)
    assert isinstance(dialler.error, AuthenticationError)
    assert "the secrets differ" in str(dialler.error)
    assert not any(frame.kind in {FrameKind.HELLO, FrameKind.WELCOME} for data in said for frame in cut(data))
    assert dialler.peer is None
    assert acceptor.peer is None


def test_an_acceptor_without_the_secret_never_hears_who_dials():
    dialler = dial()
    dialler.receive(cut(accept().start())[0])
    forged = msgspec.msgpack.encode((b"", b"m" * 32))
    assert dialler.receive(Frame(FrameKind.PROOF, forged, b"")) == b""
    assert isinstance(dialler.error, AuthenticationError)


def test_a_proof_cannot_be_reflected():
    # An attacker without the secret dials a node back with that node's own challenge and proof.
    dialler = dial()
    (proof,) = cut(dialler.receive(Frame(FrameKind.CHALLENGE, msgspec.msgpack.encode((1, b"n" * 32)), b"")))
    assert dialler.receive(proof) == b""
    assert isinstance(dialler.error, AuthenticationError)


def test_a_recorded_proof_is_worth_nothing_to_another_challenge():
    dialler = dial()
    (proof,) = cut(dialler.receive(cut(accept().start())[0]))
    later = Handshake.accept(B, SECRET, b"z" * 32)
    (refused,) = cut(later.receive(proof))
    assert refused.kind == FrameKind.REFUSED
    assert isinstance(later.error, AuthenticationError)


@pytest.mark.parametrize(
    ("changed", "found", "expected"),
    [
        ({"version": 2}, "2", "1"),
        ({"cluster": "other"}, "'other'", "'cluster'"),
        ({"group": "other"}, "'other'", "'group'"),
        ({"segment_bytes": 1 << 20}, "1048576", "1073741824"),
        ({"engine": "other"}, "'other'", "'native'"),
    ],
)
def test_what_must_agree_is_named_with_both_values_on_both_sides(changed, found, expected):
    dialler, acceptor = dial(msgspec.structs.replace(A, **changed)), accept()
    run(dialler, acceptor)
    for side in (dialler, acceptor):
        assert isinstance(side.error, HelloRejectedError)
        assert f"{next(iter(changed))} {found} found, {expected} expected" in str(side.error)
        assert side.peer is None


def test_versions_that_know_of_no_engines_and_the_native_one_understand_each_other():
    older = msgspec.structs.astuple(A)[:-1]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Hello) == A

    class Older(msgspec.Struct, frozen=True, array_like=True):
        version: int
        cluster: str
        group: str
        segment_bytes: int
        node_id: str
        incarnation: str
        lane: Lane
        host: str
        port: int

    assert msgspec.structs.astuple(msgspec.msgpack.decode(msgspec.msgpack.encode(A), type=Older)) == older


def test_a_dialler_insists_on_the_node_it_meant():
    dialler, acceptor = dial(expected="c"), accept()
    run(dialler, acceptor)
    assert isinstance(dialler.error, HelloRejectedError)
    assert "node 'b' found, 'c' expected" in str(dialler.error)


def test_two_nodes_of_one_name_are_not_linked():
    dialler, acceptor = dial(expected="b"), accept(msgspec.structs.replace(B, node_id="a"))
    run(dialler, acceptor)
    assert isinstance(acceptor.error, HelloRejectedError)
    assert "own id" in str(acceptor.error)


def test_another_protocol_version_is_named():
    dialler = dial()
    dialler.receive(Frame(FrameKind.CHALLENGE, msgspec.msgpack.encode((9, b"n" * 32)), b""))
    assert "version 9 found, 1 expected" in str(dialler.error)


@pytest.mark.parametrize("side", [dial, accept])
@pytest.mark.parametrize("kind", list(FrameKind))
def test_frames_out_of_turn_are_protocol_errors(side, kind):
    handshake = side()
    legal = FrameKind.CHALLENGE if side is dial else FrameKind.PROOF
    for frame in (Frame(kind, b"", b""), Frame(kind, b"", b"payload")):
        handshake = side()
        assert handshake.receive(frame) == b""
        assert isinstance(handshake.error, PeerProtocolError)
        assert legal.name in str(handshake.error) or kind in {legal, FrameKind.REFUSED} or frame.payload


def test_nothing_is_accepted_after_the_end():
    dialler, acceptor = dial(), accept()
    run(dialler, acceptor)
    for side in (dialler, acceptor):
        side.receive(Frame(FrameKind.HELLO, msgspec.msgpack.encode(A), b""))
        assert isinstance(side.error, PeerProtocolError)


@given(
    st.lists(st.builds(Frame, st.sampled_from(FrameKind).map(int), st.binary(max_size=100), st.just(b"")), max_size=4)
)
def test_garbage_never_raises_and_never_passes(frames):
    for side in (dial(), accept()):
        for frame in frames:
            side.receive(frame)
            if side.error is not None:
                assert isinstance(side.error, PeerError)
                break
        assert side.peer is None


def test_a_refusal_from_outside_is_quoted():
    dialler = dial()
    dialler.receive(Frame(FrameKind.REFUSED, msgspec.msgpack.encode(("evil\nline",)), b""))
    assert r"evil\nline" in str(dialler.error)


def test_a_refusal_fits_the_handshake_frame():
    long_name = "x" * 3000
    dialler, acceptor = dial(msgspec.structs.replace(A, cluster=long_name)), accept()
    run(dialler, acceptor)
    assert isinstance(dialler.error, HelloRejectedError)
    assert len(encode_head(FrameKind.REFUSED, str(dialler.error).encode())) < MAX_HANDSHAKE_FRAME_BYTES
