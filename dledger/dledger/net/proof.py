"""Proof, on a port without handshake, that the caller knows the group's secret. The secret itself is never sent.

    1. A request without proof is answered 401 with WWW-Authenticate: DLedger nonce="NONCE"
    2. The same request once more, with Authorization: DLedger nonce="NONCE", mac="MAC"

    NONCE   hex digits made by the node that answered: it accepts each once, for `NONCE_LIFE_S` seconds of its clock
    MAC     hex of HMAC-SHA256 with the secret over "dledger http 1", method, path and NONCE, with a zero byte between

So an overheard request can neither be repeated nor be changed, here or at another node, and clocks need not agree. A
nonce contains the time when it was made, and is authenticated with a key of this process. So unused nonces take no
memory, however many are requested.
"""

from __future__ import annotations

import hmac
import re
import secrets
import struct
from collections.abc import Callable
from typing import Final

from dledger_base.secret import GroupSecrets

SCHEME: Final = "DLedger"
"""Scheme of the headers `Authorization` and `WWW-Authenticate`."""
NONCE_LIFE_S: Final = 30.0

_LABEL: Final = b"dledger http 1"
_NONCE_CONTENT: Final = struct.Struct(">d16s")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = _NONCE_CONTENT.size + _TAG_BYTES
_CHALLENGE: Final = re.compile(rf'{SCHEME} nonce="([0-9a-f]+)"')
_PROOF: Final = re.compile(rf'{SCHEME} nonce="([0-9a-f]{{{2 * _NONCE_BYTES}}})", mac="([0-9a-f]{{64}})"')


class ProofError(Exception):
    """A request does not prove that its sender knows the secret. The text says why."""


def prove(secret: bytes, method: str, path: str, challenge: str) -> str:
    """Return the `Authorization` header for a request whose answer had `challenge` as `WWW-Authenticate`.

    Raises `ProofError` for a challenge of another kind.
    """
    match = _CHALLENGE.fullmatch(challenge)
    if match is None:
        raise ProofError(f"{challenge[:100]!r} is not a challenge of the scheme {SCHEME}")
    return f'{SCHEME} nonce="{match[1]}", mac="{_compute_mac(secret, method, path, match[1])}"'


class Gatekeeper:
    """Admits requests that prove knowledge of `secret`; `now` returns monotonic seconds."""

    def __init__(self, secret: bytes | GroupSecrets, now: Callable[[], float]) -> None:
        self._secrets = GroupSecrets.of(secret)
        self._now = now
        self._key = secrets.token_bytes(32)
        self._used_nonces: dict[str, float] = {}
        """Nonces that valid proofs have used, with their expiry. Only a caller that knows the secret can add nonces."""

    def challenge(self) -> str:
        """Return the `WWW-Authenticate` header for a request without proof."""
        content = _NONCE_CONTENT.pack(self._now(), secrets.token_bytes(16))
        return f'{SCHEME} nonce="{(content + self._compute_tag(content)).hex()}"'

    def check(self, method: str, path: str, authorization: str) -> None:
        """Check that the header proves this very request, for the first time. Raises `ProofError` if not."""
        match = _PROOF.fullmatch(authorization)
        if match is None:
            raise ProofError("no proof")
        nonce, now = match[1], self._now()
        content, tag = bytes.fromhex(nonce)[: _NONCE_CONTENT.size], bytes.fromhex(nonce)[_NONCE_CONTENT.size :]
        if not hmac.compare_digest(tag, self._compute_tag(content)):
            raise ProofError("the nonce was made by another node, or by an earlier process of this node")
        expires_at = float(_NONCE_CONTENT.unpack(content)[0]) + NONCE_LIFE_S
        if now >= expires_at:
            raise ProofError(f"the nonce is older than {NONCE_LIFE_S:.0f} s")
        macs = [_compute_mac(secret, method, path, nonce) for secret in self._secrets.all]
        if not any(hmac.compare_digest(match[2], mac) for mac in macs):
            raise ProofError("the secret is not this group's, or the proof is for another request")
        if nonce in self._used_nonces:
            raise ProofError("the nonce was used before")
        self._used_nonces = {used: expiry for used, expiry in self._used_nonces.items() if expiry > now}
        self._used_nonces[nonce] = expires_at

    def _compute_tag(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")[:_TAG_BYTES]


def _compute_mac(secret: bytes, method: str, path: str, nonce: str) -> str:
    parts = (_LABEL, method.encode(), path.encode(errors="surrogateescape"), nonce.encode())
    return hmac.digest(secret, b"\0".join(parts), "sha256").hex()
