"""Handshake in which two nodes prove to each other that they belong together, before anything else is sent.

    dialler                                        acceptor
              <-  CHALLENGE  version, nonce
    PROOF  nonce, mac("dialler")  ->
              <-  PROOF  nonce, mac("acceptor")
    HELLO  who I am  ->
              <-  WELCOME  who I am       or  REFUSED  why

`mac(role)` is HMAC-SHA256 with the group's secret over a label, the role, the acceptor's nonce and the dialler's nonce.
The role prevents an answer with the other side's own mac. The nonces, 32 random bytes each, prevent the replay of a
recorded handshake. The dialler proves itself first, so that a port scan learns nothing. The proofs authenticate the
other end when the connection opens. Against an attacker *on the path*, who can change bytes later, use TLS.

`Belonging` checks by the group identities of both sides whether the other node belongs to this node's group.

The state machine is pure: frames in, bytes out, randomness as an argument. Headers are MessagePack arrays.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto

import msgspec

from dledger.net.frames import Frame, FrameKind, decode_header, encode_head
from dledger.net.transport import AuthenticationError, HelloRejectedError, PeerError, PeerProtocolError
from dledger.types import NATIVE_ENGINE, Lane, ReplicaId
from dledger_base.group_identity import GroupIdentity, tell_apart


class Belonging:
    """Group identity that this node shows, and the check of other nodes' identities against it.

    `group_id` is None in a directory of a version that knew of no identities, and empty in a directory that has joined
    no group yet. `lists` returns whether the log has a replica as a member. It is None until that is known.

    A node without an identity of its own learns the first one that an admitted node shows. While it runs, it admits
    only this identity and later incarnations. Otherwise it could take part in two groups of the same name.
    """

    def __init__(self, group_id: str | None = None) -> None:
        self.group_id = group_id
        self.lists: Callable[[ReplicaId], bool] | None = None
        self._learned_group_id = ""

    def find_mismatch(self, group_id: str | None, replica: ReplicaId) -> str | None:
        """Return why a node that shows `group_id` does not belong here; None if it does, or if that is not known."""
        own_group_id = self.group_id or self._learned_group_id
        if not own_group_id or group_id in ("", own_group_id):
            return None
        if group_id is not None:
            return None if self._is_later_incarnation(group_id) else tell_apart(group_id, own_group_id)
        if not self.group_id or self.lists is None or self.lists(replica):
            return None
        return (
            f"group identity {own_group_id} expected, none found, and the group's log does not list {replica}: its"
            " directory is of another group or from before it was removed; empty the directory to have it join"
        )

    def admit(self, group_id: str | None) -> None:
        """Note that a node that shows `group_id` was admitted."""
        self._learned_group_id = group_id or self._learned_group_id

    def _is_later_incarnation(self, group_id: str) -> bool:
        """Return whether this node has no identity, and the learned group was rescued and shows a later incarnation."""
        return not self.group_id and GroupIdentity.parse(self._learned_group_id).precedes(GroupIdentity.parse(group_id))


PROTOCOL_VERSION = 1
"""Version of frames, handshake and messages together."""
NONCE_BYTES = 32
MIN_SECRET_BYTES = 16
MAX_HANDSHAKE_FRAME_BYTES = 4 << 10
"""Maximum number of bytes that a stranger can make this node hold."""
MAX_REASON_CHARACTERS = 512

_LABEL = b"dledger peer link 1\0"


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """Identity of the speaker, and settings that both sides must agree on.

    `segment_bytes` belongs to the identity of a group: with another size, equal logs would be different files. `host`
    and `port` are the dial address of the speaker's own peer port. A hello without `engine` is from a version that only
    knows the native engine and ignores the field in others' hellos. The same holds for `group_id`; see
    `Belonging`.
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
    group_id: str | None = None


class _Challenge(msgspec.Struct, frozen=True, array_like=True):
    version: int
    nonce: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True):
    nonce: bytes
    mac: bytes


class _Refused(msgspec.Struct, frozen=True, array_like=True):
    reason: str


class _Expects(Enum):
    """The only kind of frame that may come next."""

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
    """Return why two nodes cannot be linked, as text with what was found and expected; None if they can.

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

    Send the result of `start`, then pass every received frame to `receive` and send its result. After each frame,
    `peer` is set if the other end is proven and accepted. `error` is set if the handshake failed: send the result, then
    close. If neither is set, more frames are needed.

    `Handshake.dial` and `Handshake.accept` make the two sides. An acceptor takes the lane from the other side's hello.
    """

    __slots__ = (
        "_belonging",
        "_certified_names",
        "_dialler",
        "_expected_node_id",
        "_expects",
        "_hello",
        "_nonce",
        "_other_secrets",
        "_secret",
        "_their_nonce",
        "error",
        "peer",
    )

    def __init__(
        self,
        hello: Hello,
        secret: bytes,
        nonce: bytes,
        belonging: Belonging | None,
        *,
        dialler: bool,
        expected_node_id: str | None,
        others: Sequence[bytes] = (),
    ) -> None:
        self._belonging = belonging or Belonging(hello.group_id)
        self._hello = msgspec.structs.replace(hello, group_id=self._belonging.group_id)
        self._secret = secret
        self._other_secrets = others
        self._nonce = nonce
        self._their_nonce = b""
        self._dialler = dialler
        self._expected_node_id = expected_node_id
        self._certified_names: Collection[str] | None = None
        self._expects = _Expects.CHALLENGE if dialler else _Expects.PROOF
        self.peer: Hello | None = None
        self.error: PeerError | None = None

    @classmethod
    def dial(
        cls, hello: Hello, secret: bytes, nonce: bytes, expected_node_id: str, belonging: Belonging | None = None
    ) -> Handshake:
        """Make the side that connected, which knows the node that it wants to reach."""
        return cls(hello, secret, nonce, belonging, dialler=True, expected_node_id=expected_node_id)

    @classmethod
    def accept(
        cls,
        hello: Hello,
        secret: bytes,
        nonce: bytes,
        belonging: Belonging | None = None,
        others: Sequence[bytes] = (),
    ) -> Handshake:
        """Make the side that listens; `hello.lane` is ignored.

        A dialler may also prove itself with one of the `others`. The answer is then proven with the same secret.
        """
        return cls(hello, secret, nonce, belonging, dialler=False, expected_node_id=None, others=others)

    def bind(self, names: Collection[str]) -> None:
        """Accept only a node whose id is among the names in the other end's certificate."""
        self._certified_names = names

    @property
    def has_begun(self) -> bool:
        """True if the other end has sent something valid."""
        return bool(self._their_nonce)

    def start(self) -> bytes:
        """Return the bytes to send before anything is received."""
        if self._dialler:
            return b""
        return encode_head(FrameKind.CHALLENGE, _encode(_Challenge(PROTOCOL_VERSION, self._nonce)))

    def receive(self, frame: Frame) -> bytes:
        """Take a frame, and return the bytes to send. Never raises: failures are in `error`."""
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
            raise self._refusal_error(decode_header(frame, _decode_refused).reason)
        expected = _EXPECTED_KIND.get(self._expects)
        if frame.kind != expected:
            expected_name = expected.name if expected else "nothing"
            raise PeerProtocolError(f"{FrameKind(frame.kind).name} found, {expected_name} expected in a handshake")
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
        self._their_nonce = _check_nonce(challenge.nonce)
        self._expects = _Expects.PROOF
        return encode_head(FrameKind.PROOF, _encode(_Proof(self._nonce, self._compute_mac(by_dialler=True))))

    def _on_proof(self, proof: _Proof) -> bytes:
        if self._dialler:
            self._verify_mac(proof.mac, by_dialler=False)
            self._expects = _Expects.WELCOME
            return encode_head(FrameKind.HELLO, _encode(self._hello))
        self._their_nonce = _check_nonce(proof.nonce)
        self._choose_secret(proof.mac)
        try:
            self._verify_mac(proof.mac, by_dialler=True)
        except AuthenticationError as error:
            return self._refuse(error, "the secrets differ")
        self._expects = _Expects.HELLO
        return encode_head(FrameKind.PROOF, _encode(_Proof(self._nonce, self._compute_mac(by_dialler=False))))

    def _on_hello(self, theirs: Hello) -> bytes:
        mine = msgspec.structs.replace(self._hello, lane=theirs.lane)
        mismatch = self._find_mismatch(mine, theirs)
        if mismatch is not None:
            return self._refuse(HelloRejectedError(f"{mismatch} (node {theirs.node_id!r} dialled)"), mismatch)
        self._belonging.admit(theirs.group_id)
        self.peer = theirs
        self._expects = _Expects.NOTHING
        return encode_head(FrameKind.WELCOME, _encode(mine))

    def _on_welcome(self, theirs: Hello) -> bytes:
        mismatch = self._find_mismatch(self._hello, theirs)
        if mismatch is not None:
            raise HelloRejectedError(mismatch)
        self._belonging.admit(theirs.group_id)
        self.peer = theirs
        self._expects = _Expects.NOTHING
        return b""

    def _find_mismatch(self, mine: Hello, theirs: Hello) -> str | None:
        if self._certified_names is not None and theirs.node_id not in self._certified_names:
            certified = ", ".join(self._certified_names) or "nobody"
            return f"a certificate for {certified!r} found, one for node {theirs.node_id!r} expected (tls_peer_names)"
        return find_mismatch(mine, theirs, self._expected_node_id) or self._belonging.find_mismatch(
            theirs.group_id, ReplicaId(theirs.node_id, theirs.incarnation)
        )

    def _refuse(self, error: PeerError, reason: str) -> bytes:
        """Give up, and send the dialler the reason, because its operator reads the dialler's log, not this one."""
        self.error = error
        self._expects = _Expects.NOTHING
        return encode_head(FrameKind.REFUSED, _encode(_Refused(reason[:MAX_REASON_CHARACTERS])))

    def _refusal_error(self, reason: str) -> PeerError:
        """Return the error for a refusal. Its text is from another node and is quoted."""
        quoted_reason = repr(reason[:MAX_REASON_CHARACTERS])
        if self._expects is _Expects.WELCOME:
            return HelloRejectedError(f"it refused this node, saying that {quoted_reason}")
        return AuthenticationError(
            f"it refused this node, saying {quoted_reason}: all nodes of a group need the same secret"
        )

    def _compute_mac(self, *, by_dialler: bool, secret: bytes = b"") -> bytes:
        ours, theirs = self._nonce, self._their_nonce
        acceptor_nonce, dialler_nonce = (theirs, ours) if self._dialler else (ours, theirs)
        role = b"dialler\0" if by_dialler else b"acceptor\0"
        return hmac.digest(secret or self._secret, _LABEL + role + acceptor_nonce + dialler_nonce, "sha256")

    def _choose_secret(self, mac: bytes) -> None:
        """Go on by the other secret, if that is the one which a dialler proves."""
        for secret in (self._secret, *self._other_secrets):
            if hmac.compare_digest(mac, self._compute_mac(by_dialler=True, secret=secret)):
                self._secret = secret
                return

    def _verify_mac(self, mac: bytes, *, by_dialler: bool) -> None:
        if not hmac.compare_digest(mac, self._compute_mac(by_dialler=by_dialler)):
            raise AuthenticationError("it does not know this group's secret: all nodes of a group need the same one")


def _check_nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise PeerProtocolError(f"nonce of {len(nonce)} bytes found, {NONCE_BYTES} expected")
    return nonce
