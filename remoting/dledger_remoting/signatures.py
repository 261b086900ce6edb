"""Signatures of requests: HMAC-SHA1 over the values of the ext fields and the body, as RocketMQ's clients make them.

What is signed are the values of all ext fields but `Signature`, in the order of their names by UTF-16 code units, as
UTF-8 and with nothing between them, and then the body. `Signature` is the Base64 of the HMAC, whose key is the secret
in UTF-8. Neither code, opaque nor a time is signed, nor where a value ends: who records a request can send it again, or
as another one of the same text. Where others listen TLS is needed.

Two clients sign less: Go's leaves out `SecurityToken`; clients of RocketMQ before 4.9.4 leave out `_UNIQUE_KEY_QUERY`.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from .headers_query import UNIQUE_KEY_QUERY_FIELD
from .headers_send import WRITE_ALIAS_FIELD

ACCESS_KEY_FIELD: Final = "AccessKey"
SIGNATURE_FIELD: Final = "Signature"
SECURITY_TOKEN_FIELD: Final = "SecurityToken"  # noqa: S105 -- the name of a field
LAST_VERSION_WITHOUT_KEY_QUERY: Final = 399
"""RocketMQ 4.9.3, by the number that requests carry."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The account that a client signs for, and the account's secret, which no text of this object shows.

    Raises `ValueError` for an empty one.
    """

    access_key: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what no server takes."""
        if not self.access_key or not self.secret:
            raise ValueError("credentials name an account and have its secret: one of the two is empty")


def signature_of(secret: str, ext: Mapping[str, str], body: bytes, leave_out: frozenset[str] = frozenset()) -> str:
    """The signature of a request, in which `Signature` counts for nothing."""
    names = sorted((name for name in ext if name != SIGNATURE_FIELD and name not in leave_out), key=_code_units)
    signed = "".join([ext[name] for name in names]).encode(errors="replace") + body
    return b64encode(hmac.digest(secret.encode(errors="replace"), signed, "sha1")).decode()


def signed(ext: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """The ext fields of a request with the account and its signature."""
    named = {**ext, ACCESS_KEY_FIELD: credentials.access_key}
    named[SIGNATURE_FIELD] = signature_of(credentials.secret, named, body)
    return named


def without_signature(ext: Mapping[str, str]) -> dict[str, str]:
    """Ext fields for somebody else than who they were signed for, who could send them again as another request."""
    named = (ACCESS_KEY_FIELD, SIGNATURE_FIELD, SECURITY_TOKEN_FIELD)
    return {name: value for name, value in ext.items() if name not in named}


def is_signed_with(secret: str, ext: Mapping[str, str], body: bytes, version: int) -> bool:
    """Whether a request of a client of this version is signed with a secret; what differs does not change how long the
    comparison takes. An empty secret signs nothing.
    """
    if not secret:
        return False
    found = ext.get(SIGNATURE_FIELD, "").encode(errors="replace")
    matches = False
    for leave_out in _variants(ext, version):
        wanted = signature_of(secret, ext, body, leave_out).encode()
        matches |= hmac.compare_digest(found, wanted)
    return matches


def _variants(ext: Mapping[str, str], version: int) -> Iterator[frozenset[str]]:
    """What clients of a version may have left out, and what nodes add."""
    old = {UNIQUE_KEY_QUERY_FIELD} if version <= LAST_VERSION_WITHOUT_KEY_QUERY else set()
    always = frozenset({*old, WRITE_ALIAS_FIELD})
    yield always
    if SECURITY_TOKEN_FIELD in ext:
        yield always | {SECURITY_TOKEN_FIELD}


def _code_units(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
