"""The handshake: only two nodes that hold the secret and dial each other's node id get through."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.net.frames import Frame, FrameKind, FrameReader, encode_head
from dledger.net.handshake import MAX_HANDSHAKE_FRAME_BYTES, Belonging, Handshake, Hello
from dledger.net.transport import AuthenticationError, HelloRejectedError, PeerError, PeerProtocolError
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
    """Carry bytes between both sides until neither side answers, and return all of them."""
    said = []
    to_dialler, to_acceptor = acceptor.start(), dialler.start()
    while to_dialler or to_acceptor:
        said += [to_dialler, to_acceptor]
        answers = b"".join(dialler.receive(frame) for frame in cut(to_dialler))
        to_dialler = b"".join(acceptor.receive(frame) for frame in cut(to_acceptor))
        to_acceptor = answers
    return said


def dial(hello: Hello = A, secret: bytes = SECRET, expected: str = "b", **changes: object) -> Handshake:
    return Handshake.dial(msgspec.structs.replace(hello, **changes), secret, b"d" * 32, expected)


def accept(hello: Hello = B, secret: bytes = SECRET, *more: object, **options: object) -> Handshake:
    return Handshake.accept(hello, secret, b"a" * 32, *more, **options)


def challenged(version: int = 1) -> Frame:
    return Frame(FrameKind.CHALLENGE, msgspec.msgpack.encode((version, b"n" * 32)), b"")


def test_two_holders_of_the_secret_learn_each_others_identity():
    dialler, acceptor = dial(), accept()
    run(dialler, acceptor)
    assert acceptor.peer == A
    assert dialler.peer == msgspec.structs.replace(B, lane=Lane.BULK)
    assert dialler.error is acceptor.error is None
    for side in (dialler, acceptor):
        side.receive(Frame(FrameKind.HELLO, msgspec.msgpack.encode(A), b""))
        assert isinstance(side.error, PeerProtocolError), "nothing is accepted after the end"


def test_an_acceptor_refuses_a_wrong_secret_before_any_hello():
    dialler, acceptor = dial(secret=b"another secret of a group"), accept()
    said = run(dialler, acceptor)
    for side in (dialler, acceptor):
        assert isinstance(side.error, AuthenticationError)
        assert side.peer is None
    assert "the secrets differ" in str(dialler.error)
    assert not any(frame.kind in {FrameKind.HELLO, FrameKind.WELCOME} for data in said for frame in cut(data))


def test_an_acceptor_with_two_secrets_answers_with_the_proven_secret():
    first, other = b"the newer secret of the two", b"the older secret of the two"
    for secret in (first, other, SECRET):
        dialler, acceptor = dial(secret=secret), accept(B, first, others=[other])
        run(dialler, acceptor)
        if secret is SECRET:
            assert isinstance(acceptor.error, AuthenticationError)
        else:
            assert acceptor.peer == A
            assert dialler.error is None


def test_a_dialler_sends_no_hello_to_an_acceptor_without_the_secret():
    dialler = dial()
    dialler.receive(cut(accept().start())[0])
    forged = msgspec.msgpack.encode((b"", b"m" * 32))
    assert dialler.receive(Frame(FrameKind.PROOF, forged, b"")) == b""
    assert isinstance(dialler.error, AuthenticationError)


def test_a_proof_cannot_be_reflected():
    # An attacker without the secret dials a node back with that node's own challenge and proof.
    dialler = dial()
    (proof,) = cut(dialler.receive(challenged()))
    assert dialler.receive(proof) == b""
    assert isinstance(dialler.error, AuthenticationError)


def test_a_recorded_proof_is_refused_for_another_challenge():
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
def test_a_handshake_mismatch_names_both_values_on_both_sides(changed, found, expected):
    dialler, acceptor = dial(**changed), accept()
    run(dialler, acceptor)
    for side in (dialler, acceptor):
        assert isinstance(side.error, HelloRejectedError)
        assert f"{next(iter(changed))} {found} found, {expected} expected" in str(side.error)
        assert side.peer is None


ONE, OTHER, RESCUED = "1" * 32, "2" * 32, "1" * 32 + ".2"


@pytest.mark.parametrize(
    ("theirs", "mine", "refusal"),
    [
        (ONE, ONE, None),
        ("", ONE, None),
        (ONE, None, None),
        (None, ONE, "group's log does not list a#a-1"),
        (OTHER, ONE, f"group identity {OTHER} found, {ONE} expected: the group was founded twice"),
        (ONE, RESCUED, "the group was rescued without the other node"),
        (RESCUED, ONE, "the group was rescued without this node"),
    ],
)
@pytest.mark.parametrize("listed", [True, False])
def test_nodes_of_two_groups_of_one_name_are_told_apart_by_identity(theirs, mine, refusal, listed):
    belonging = Belonging(mine)
    belonging.lists = lambda replica: listed
    dialler, acceptor = dial(group_id=theirs), accept(B, SECRET, belonging)
    run(dialler, acceptor)
    for side in (dialler, acceptor):
        if refusal is None or (theirs is None and listed):
            assert side.error is None
        else:
            assert refusal in str(side.error)


def test_a_node_without_identity_accepts_only_its_first_group_and_its_rescues():
    belonging = Belonging("")
    heard = []
    for theirs in (ONE, OTHER, None, RESCUED, ONE):
        acceptor = accept(B, SECRET, belonging)
        run(dial(group_id=theirs), acceptor)
        heard.append(acceptor.error is None)
    assert heard == [True, False, True, True, False]


def test_hellos_are_compatible_with_versions_without_engines():
    older = msgspec.structs.astuple(A)[:-2]
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


@pytest.mark.parametrize(
    ("dialler", "acceptor", "refuses", "text"),
    [
        (lambda: dial(expected="c"), accept, 0, "node 'b' found, 'c' expected"),
        (dial, lambda: accept(msgspec.structs.replace(B, node_id="a")), 1, "own id"),
    ],
    ids=["another node", "the own name"],
)
def test_a_node_refuses_another_node_than_the_expected_and_one_of_its_own_name(dialler, acceptor, refuses, text):
    sides = dialler(), acceptor()
    run(*sides)
    assert isinstance(sides[refuses].error, HelloRejectedError)
    assert text in str(sides[refuses].error)


def test_another_protocol_version_is_named():
    dialler = dial()
    dialler.receive(challenged(9))
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


def test_a_refusal_from_outside_is_quoted_and_the_own_fits_the_handshake_frame():
    dialler = dial()
    dialler.receive(Frame(FrameKind.REFUSED, msgspec.msgpack.encode(("evil\nline",)), b""))
    assert r"evil\nline" in str(dialler.error)
    dialler, acceptor = dial(cluster="x" * 3000), accept()
    run(dialler, acceptor)
    assert isinstance(dialler.error, HelloRejectedError)
    assert len(encode_head(FrameKind.REFUSED, str(dialler.error).encode())) < MAX_HANDSHAKE_FRAME_BYTES
