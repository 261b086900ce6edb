"""Signatures of requests: HMAC-SHA1 over the values of the ext fields and the body, as RocketMQ's clients make them.

The signed text is the values of all ext fields but `Signature`, and then the body. Values are sorted by their names in
UTF-16 code units, encoded as UTF-8, and joined with nothing between them. `Signature` is the Base64 of the HMAC, whose
key is the secret in UTF-8.

Neither code, opaque, a time, nor the ends of values are signed. An attacker who records a request can send it again, or
send another request of the same text. TLS is needed where others can listen.

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
NOT_SIGNED: Final = (
    "username cannot be null. (the request is not signed: set credentials= in a client, DLEDGER_CREDENTIALS for "
    "commands, or an AclClientRPCHook in Java)"
)
"""Refusal of a request that names no account: RocketMQ's words, and what to set."""
LAST_VERSION_WITHOUT_KEY_QUERY: Final = 399
"""RocketMQ 4.9.3, by the number that requests carry."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """The account for which a client signs, and the account's secret, which no text of this object shows.

    Raises `ValueError` if one of them is empty.
    """

    access_key: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse empty values, which no server accepts."""
        if not self.access_key or not self.secret:
            raise ValueError("credentials name an account and have its secret: one of the two is empty")

    @property
    def fields(self) -> Mapping[str, str]:
        """Further ext fields of each request, which are signed with it."""
        return {}


def signature_of(secret: str, ext: Mapping[str, str], body: bytes, leave_out: frozenset[str] = frozenset()) -> str:
    """Return the signature of a request. A `Signature` in its fields is ignored."""
    names = sorted((name for name in ext if name != SIGNATURE_FIELD and name not in leave_out), key=_code_units)
    fields = "".join([ext[name] for name in names]).encode(errors="replace")
    code = hmac.new(secret.encode(errors="replace"), fields, "sha1")
    code.update(body)  # avoids a copy of a large body behind the fields
    return b64encode(code.digest()).decode()


def signed(ext: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """Return the ext fields of a request with those of the credentials, the account and its signature."""
    signed_ext = {**ext, **credentials.fields, ACCESS_KEY_FIELD: credentials.access_key}
    signed_ext[SIGNATURE_FIELD] = signature_of(credentials.secret, signed_ext, body)
    return signed_ext


def without_signature(ext: Mapping[str, str]) -> dict[str, str]:
    """Return ext fields without the signature, to be sent to another receiver, which could replay them as another
    request.
    """
    signature_fields = (ACCESS_KEY_FIELD, SIGNATURE_FIELD, SECURITY_TOKEN_FIELD)
    return {name: value for name, value in ext.items() if name not in signature_fields}


def is_signed_with(secret: str, ext: Mapping[str, str], body: bytes, version: int) -> bool:
    """Return whether a request of a client of this version is signed with a secret. An empty secret signs nothing.

    Comparisons take constant time, so their duration does not reveal where signatures differ. A right signature is
    usually computed once, because most clients sign the same way. A wrong signature is computed at most twice.
    """
    if not secret:
        return False
    signature = ext.get(SIGNATURE_FIELD, "").encode(errors="replace")
    return any(
        hmac.compare_digest(signature, signature_of(secret, ext, body, leave_out).encode())
        for leave_out in _variants(ext, version)
    )


def _variants(ext: Mapping[str, str], version: int) -> Iterator[frozenset[str]]:
    """Yield the sets of fields that may be unsigned: clients of a version leave them out, or nodes add them."""
    old_client_fields = {UNIQUE_KEY_QUERY_FIELD} if version <= LAST_VERSION_WITHOUT_KEY_QUERY else set()
    unsigned = frozenset({*old_client_fields, WRITE_ALIAS_FIELD})
    yield unsigned
    if SECURITY_TOKEN_FIELD in ext:
        yield unsigned | {SECURITY_TOKEN_FIELD}


def _code_units(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
