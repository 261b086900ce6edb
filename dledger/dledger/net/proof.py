"""Proof, over a port that has no handshake, that whoever asks knows the group's secret; the secret is never sent.

    1. A request without proof is answered 401 with    WWW-Authenticate: DLedger nonce="NONCE"
    2. The same request once more, with                Authorization: DLedger nonce="NONCE", mac="MAC"

    NONCE   letters of the node that answered: it takes each once, for `NONCE_LIFE_S` seconds by its monotonic clock
    MAC     hex of HMAC-SHA256 with the secret over "dledger http 1", method, path and NONCE, with a zero byte between

So a request that was overheard can neither be sent again nor be changed, here or at another node, and nothing rests on
clocks that agree.  A nonce carries when it was made and is authenticated with a key that the process drew: nothing is
kept of those that nobody uses, however many are asked for.
"""

from __future__ import annotations

import hmac
import re
import secrets
import struct
from collections.abc import Callable
from typing import Final

SCHEME: Final = "DLedger"
"""Of the headers `Authorization` and `WWW-Authenticate`."""
NONCE_LIFE_S: Final = 30.0

_LABEL: Final = b"dledger http 1"
_MADE: Final = struct.Struct(">d16s")
_TAG_BYTES: Final = 16
_NONCE_BYTES: Final = _MADE.size + _TAG_BYTES
_CHALLENGE: Final = re.compile(rf'{SCHEME} nonce="([0-9a-f]+)"')
_PROOF: Final = re.compile(rf'{SCHEME} nonce="([0-9a-f]{{{2 * _NONCE_BYTES}}})", mac="([0-9a-f]{{64}})"')


class ProofError(Exception):
    """A request does not prove that its sender knows the secret; the text says why."""


def prove(secret: bytes, method: str, path: str, challenge: str) -> str:
    """The `Authorization` header for a request whose answer had `challenge` as `WWW-Authenticate`.

    Raises `ProofError` for a challenge of another kind.
    """
    found = _CHALLENGE.fullmatch(challenge)
    if found is None:
        raise ProofError(f"{challenge[:100]!r} is no challenge of {SCHEME}'s")
    return f'{SCHEME} nonce="{found[1]}", mac="{_mac(secret, method, path, found[1])}"'


class Gatekeeper:
    """Lets requests pass that prove to know `secret`; `now` is monotonic seconds."""

    def __init__(self, secret: bytes, now: Callable[[], float]) -> None:
        self._secret = secret
        self._now = now
        self._key = secrets.token_bytes(32)
        self._used: dict[str, float] = {}
        """Nonces that a valid proof has used, and when they end: nobody without the secret adds to them."""

    def challenge(self) -> str:
        """The `WWW-Authenticate` header for a request that proves nothing."""
        made = _MADE.pack(self._now(), secrets.token_bytes(16))
        return f'{SCHEME} nonce="{(made + self._tag(made)).hex()}"'

    def check(self, method: str, path: str, authorization: str) -> None:
        """Return if the header proves this very request, for the first time. Raises `ProofError`."""
        found = _PROOF.fullmatch(authorization)
        if found is None:
            raise ProofError("no proof")
        nonce, now = found[1], self._now()
        made, tag = bytes.fromhex(nonce)[: _MADE.size], bytes.fromhex(nonce)[_MADE.size :]
        if not hmac.compare_digest(tag, self._tag(made)):
            raise ProofError("the nonce is not of this node, or of an earlier process")
        ends = float(_MADE.unpack(made)[0]) + NONCE_LIFE_S
        if now >= ends:
            raise ProofError(f"the nonce is older than {NONCE_LIFE_S:.0f} s")
        if not hmac.compare_digest(found[2], _mac(self._secret, method, path, nonce)):
            raise ProofError("the secret is not this group's, or the request is another one than was proven")
        if nonce in self._used:
            raise ProofError("the nonce was used before")
        self._used = {known: end for known, end in self._used.items() if end > now} | {nonce: ends}

    def _tag(self, made: bytes) -> bytes:
        return hmac.digest(self._key, made, "sha256")[:_TAG_BYTES]


def _mac(secret: bytes, method: str, path: str, nonce: str) -> str:
    parts = (_LABEL, method.encode(), path.encode(errors="surrogateescape"), nonce.encode())
    return hmac.digest(secret, b"\0".join(parts), "sha256").hex()
