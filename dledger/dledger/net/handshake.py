"""Handshake by which two nodes prove to each other that they belong together, before anything else is said.

    dialler                                        acceptor
              <-  CHALLENGE  version, nonce
    PROOF  nonce, mac("dialler")  ->
              <-  PROOF  nonce, mac("acceptor")
    HELLO  who I am  ->
              <-  WELCOME  who I am       or  REFUSED  why

`mac(role)` is HMAC-SHA256 with the group's secret over a label, the role, the acceptor's nonce and the dialler's nonce.
The role keeps either side from answering with the other's own words; the nonces, 32 random bytes each, keep a recorded
handshake from being played again.  Whoever dials proves himself first, so that a port scan learns nothing.  The proofs
say who is at the other end when the connection opens; against someone *on the path*, who can change bytes later, use
TLS.

The state machine is pure: frames in, bytes out, randomness as an argument.  Headers are MessagePack arrays.
"""

from __future__ import annotations

import hmac
from enum import Enum, auto

import msgspec

from dledger.net.errors import AuthenticationError, HelloRejectedError, PeerError, PeerProtocolError
from dledger.net.frames import Frame, FrameKind, decode_header, encode_head
from dledger.types import NATIVE_ENGINE, Lane

PROTOCOL_VERSION = 1
"""Of frames, handshake and messages together."""
NONCE_BYTES = 32
MIN_SECRET_BYTES = 16
MAX_HANDSHAKE_FRAME_BYTES = 4 << 10
"""What a stranger can make this node hold."""
MAX_REASON_CHARACTERS = 512

_LABEL = b"dledger peer link 1\0"


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Who is speaking, and what both sides must agree on.

    `segment_bytes` belongs to the identity of a group: with another one, equal logs would be different files.
    `host` and `port` are where the speaker's own peer port is dialled.  A hello without `engine` is of a version
    that knows of the native one alone, and passes over the field in those of others.
    """

    version: int
    cluster: str
    group: str
    segment_bytes: int
    node_id: str
    incarnation: str
    lane: Lane
    host: str
    port: int
    engine: str = NATIVE_ENGINE


class _Challenge(msgspec.Struct, frozen=True, array_like=True):
    version: int
    nonce: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True):
    nonce: bytes
    mac: bytes


class _Refused(msgspec.Struct, frozen=True, array_like=True):
    reason: str


class _Expects(Enum):
    """The one kind of frame that may come next."""

    CHALLENGE = auto()
    PROOF = auto()
    HELLO = auto()
    WELCOME = auto()
    NOTHING = auto()


_encode = msgspec.msgpack.Encoder().encode
_decode_challenge = msgspec.msgpack.Decoder(_Challenge).decode
_decode_proof = msgspec.msgpack.Decoder(_Proof).decode
_decode_hello = msgspec.msgpack.Decoder(Hello).decode
_decode_refused = msgspec.msgpack.Decoder(_Refused).decode
_EXPECTED_KIND = {
    _Expects.CHALLENGE: FrameKind.CHALLENGE,
    _Expects.PROOF: FrameKind.PROOF,
    _Expects.HELLO: FrameKind.HELLO,
    _Expects.WELCOME: FrameKind.WELCOME,
}


def find_mismatch(mine: Hello, theirs: Hello, expected_node_id: str | None) -> str | None:
    """Why two nodes cannot be linked, as text that names what was found and expected; None if they can.

    `expected_node_id` None accepts any node but this one.
    """
    for name in ("version", "cluster", "group", "engine", "segment_bytes", "lane"):
        found, expected = getattr(theirs, name), getattr(mine, name)
        if found != expected:
            return f"{name} {found!r} found, {expected!r} expected"
    if expected_node_id is not None and theirs.node_id != expected_node_id:
        return f"node {theirs.node_id!r} found, {expected_node_id!r} expected: check the dial address"
    if theirs.node_id == mine.node_id:
        return f"node {theirs.node_id!r} found, which is this node's own id: two nodes must not share one"
    return None


class Handshake:
    """One side of one connection's handshake.

    Send what `start` returns, then feed every received frame to `receive` and send what that returns.  Afterwards
    either `peer` is set (the other end is proven and accepted), or `error` is (send what was returned, then close), or
    more frames are needed.

    `Handshake.dial` and `Handshake.accept` make the two sides.  An acceptor does not know the lane before it is told,
    and takes it from the other's hello.
    """

    __slots__ = (
        "_dialler",
        "_expected_node_id",
        "_expects",
        "_hello",
        "_nonce",
        "_secret",
        "_their_nonce",
        "error",
        "peer",
    )

    def __init__(
        self, hello: Hello, secret: bytes, nonce: bytes, *, dialler: bool, expected_node_id: str | None
    ) -> None:
        self._hello = hello
        self._secret = secret
        self._nonce = nonce
        self._their_nonce = b""
        self._dialler = dialler
        self._expected_node_id = expected_node_id
        self._expects = _Expects.CHALLENGE if dialler else _Expects.PROOF
        self.peer: Hello | None = None
        self.error: PeerError | None = None

    @classmethod
    def dial(cls, hello: Hello, secret: bytes, nonce: bytes, expected_node_id: str) -> Handshake:
        """The side that connected, and knows whom it means to reach."""
        return cls(hello, secret, nonce, dialler=True, expected_node_id=expected_node_id)

    @classmethod
    def accept(cls, hello: Hello, secret: bytes, nonce: bytes) -> Handshake:
        """The side that listens; `hello.lane` is ignored."""
        return cls(hello, secret, nonce, dialler=False, expected_node_id=None)

    @property
    def has_begun(self) -> bool:
        """Whether the other end has said something that belongs here."""
        return bool(self._their_nonce)

    def start(self) -> bytes:
        """What to send before anything is received."""
        if self._dialler:
            return b""
        return encode_head(FrameKind.CHALLENGE, _encode(_Challenge(PROTOCOL_VERSION, self._nonce)))

    def receive(self, frame: Frame) -> bytes:
        """Digest a frame; returns what to send.  Raises nothing: what went wrong is in `error`."""
        try:
            return self._receive(frame)
        except PeerError as error:
            self.error = error
            self._expects = _Expects.NOTHING
            return b""

    def _receive(self, frame: Frame) -> bytes:
        if frame.payload:
            raise PeerProtocolError(f"a payload of {len(frame.payload)} bytes found in a handshake")
        if frame.kind == FrameKind.REFUSED and self._dialler and self._expects is not _Expects.NOTHING:
            raise self._refusal(decode_header(frame, _decode_refused).reason)
        expected = _EXPECTED_KIND.get(self._expects)
        if frame.kind != expected:
            wanted = expected.name if expected else "nothing"
            raise PeerProtocolError(f"{FrameKind(frame.kind).name} found, {wanted} expected in a handshake")
        match self._expects:
            case _Expects.CHALLENGE:
                return self._on_challenge(decode_header(frame, _decode_challenge))
            case _Expects.PROOF:
                return self._on_proof(decode_header(frame, _decode_proof))
            case _Expects.HELLO:
                return self._on_hello(decode_header(frame, _decode_hello))
            case _:
                return self._on_welcome(decode_header(frame, _decode_hello))

    def _on_challenge(self, challenge: _Challenge) -> bytes:
        if challenge.version != PROTOCOL_VERSION:
            raise HelloRejectedError(f"version {challenge.version} found, {PROTOCOL_VERSION} expected")
        self._their_nonce = _checked_nonce(challenge.nonce)
        self._expects = _Expects.PROOF
        return encode_head(FrameKind.PROOF, _encode(_Proof(self._nonce, self._mac(by_dialler=True))))

    def _on_proof(self, proof: _Proof) -> bytes:
        if self._dialler:
            self._verify(proof.mac, by_dialler=False)
            self._expects = _Expects.WELCOME
            return encode_head(FrameKind.HELLO, _encode(self._hello))
        self._their_nonce = _checked_nonce(proof.nonce)
        try:
            self._verify(proof.mac, by_dialler=True)
        except AuthenticationError as error:
            return self._refuse(error, "the secrets differ")
        self._expects = _Expects.HELLO
        return encode_head(FrameKind.PROOF, _encode(_Proof(self._nonce, self._mac(by_dialler=False))))

    def _on_hello(self, theirs: Hello) -> bytes:
        mine = msgspec.structs.replace(self._hello, lane=theirs.lane)
        mismatch = find_mismatch(mine, theirs, self._expected_node_id)
        if mismatch is not None:
            return self._refuse(HelloRejectedError(f"{mismatch} (node {theirs.node_id!r} dialled)"), mismatch)
        self.peer = theirs
        self._expects = _Expects.NOTHING
        return encode_head(FrameKind.WELCOME, _encode(mine))

    def _on_welcome(self, theirs: Hello) -> bytes:
        mismatch = find_mismatch(self._hello, theirs, self._expected_node_id)
        if mismatch is not None:
            raise HelloRejectedError(mismatch)
        self.peer = theirs
        self._expects = _Expects.NOTHING
        return b""

    def _refuse(self, error: PeerError, reason: str) -> bytes:
        """Give up, and tell the dialler why: its operator looks into its log, not into this one."""
        self.error = error
        self._expects = _Expects.NOTHING
        return encode_head(FrameKind.REFUSED, _encode(_Refused(reason[:MAX_REASON_CHARACTERS])))

    def _refusal(self, reason: str) -> PeerError:
        """The error for a refusal; its text comes from outside and is quoted."""
        said = repr(reason[:MAX_REASON_CHARACTERS])
        if self._expects is _Expects.WELCOME:
            return HelloRejectedError(f"it refused this node, saying that {said}")
        return AuthenticationError(f"it refused this node, saying {said}: all nodes of a group need the same secret")

    def _mac(self, *, by_dialler: bool) -> bytes:
        ours, theirs = self._nonce, self._their_nonce
        acceptor_nonce, dialler_nonce = (theirs, ours) if self._dialler else (ours, theirs)
        role = b"dialler\0" if by_dialler else b"acceptor\0"
        return hmac.digest(self._secret, _LABEL + role + acceptor_nonce + dialler_nonce, "sha256")

    def _verify(self, mac: bytes, *, by_dialler: bool) -> None:
        if not hmac.compare_digest(mac, self._mac(by_dialler=by_dialler)):
            raise AuthenticationError("it does not know this group's secret: all nodes of a group need the same one")


def _checked_nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise PeerProtocolError(f"nonce of {len(nonce)} bytes found, {NONCE_BYTES} expected")
    return nonce
