"""Speech for others: the fields by which a proxy says for which client it sends a request, and what that client signed.

RocketMQ's gRPC clients sign only a date. A proxy cannot sign a broker's request with a secret that it does not have. It
signs the request for an account of its own, and passes on the client's signature, which the broker checks.

| ext field | is |
|---|---|
| `dledgerForAddress` | numeric address and port of the client; every request for another client has it |
| `dledgerForAccount` | the client's account, absent if the client names none |
| `dledgerForText` | the text that the client signed: the value of its header `x-mq-date-time`, a date |
| `dledgerForSignature` | HMAC-SHA1 of the text in hexadecimal digits of either case, with the account's secret as key |

The client's header `authorization` has account and signature:

    MQv2-HMAC-SHA1 Credential=ACCOUNT/REGION/RocketMQ, SignedHeaders=x-mq-date-time, Signature=HEX

Region and service are optional. The date is `yyyyMMdd'T'HHmmss'Z'`, UTC. Rust's client writes it as RFC 3339 does,
with fractions of a second and an offset.

An attacker who records such a header can use it for requests of any kind, until the date is too old. TLS prevents the
recording.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Final

import msgspec

from .errors import InvalidParameter
from .hosts import HostAddress, split_host_port
from .signatures import Credentials

FOR_ADDRESS_FIELD: Final = "dledgerForAddress"
FOR_ACCOUNT_FIELD: Final = "dledgerForAccount"
FOR_TEXT_FIELD: Final = "dledgerForText"
FOR_SIGNATURE_FIELD: Final = "dledgerForSignature"
ALGORITHM: Final = "MQv2-HMAC-SHA1"
SIGNED_HEADER: Final = "x-mq-date-time"
MAX_TEXT_CHARS: Final = 128
"""Maximum length of a signed text and of a signature in characters. A date has at most 35, a signature 40."""
_DATE: Final = "%Y%m%dT%H%M%SZ"
_DATE_CHARS: Final = 16
_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_FIELDS: Final = (FOR_ADDRESS_FIELD, FOR_ACCOUNT_FIELD, FOR_TEXT_FIELD, FOR_SIGNATURE_FIELD)


class Speech(msgspec.Struct, frozen=True):
    """The client that a request is sent for: its address, and the account, text and signature of its credentials.

    A client without credentials has empty texts.
    """

    address: HostAddress
    account: str = ""
    text: str = ""
    signature: str = ""

    @property
    def ext(self) -> dict[str, str]:
        """The ext fields of a request for this client. They belong to the fields that the proxy signs."""
        values = (str(self.address), self.account, self.text, self.signature)
        return {name: value for name, value in zip(_FIELDS, values, strict=True) if value}

    def is_signed_with(self, secret: str) -> bool:
        """Return whether the client signed its text with a secret. An empty secret or text signs nothing.

        The comparison takes constant time, so its duration does not reveal where signatures differ.
        """
        if not secret or not self.text:
            return False
        return hmac.compare_digest(
            self.signature.lower().encode(errors="replace"), sign_text(secret, self.text).encode()
        )


@dataclass(frozen=True, slots=True)
class SpokenCredentials(Credentials):
    """Credentials of a proxy whose requests are all sent for one client, which has given its own credentials.

    The proxy signs the present date with the client's secret, so that the secret itself goes no further. A client
    without credentials is `None`; brokers then know its address alone.
    """

    address: HostAddress
    client: Credentials | None

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of a request that is sent now."""
        if self.client is None:
            return Speech(self.address).ext
        date = format_date(time.time())
        return Speech(self.address, self.client.access_key, date, sign_text(self.client.secret, date)).ext


def is_for_another(ext: Mapping[str, str]) -> bool:
    """Return whether a request is sent for another client."""
    return not ext.keys().isdisjoint(_FIELDS)


def speech_in(ext: Mapping[str, str]) -> Speech | None:
    """Return the client that a request is sent for, None if it is the sender's own. Raises `InvalidParameter`."""
    if not is_for_another(ext):
        return None
    address, account, text, signature = (ext.get(name, "") for name in _FIELDS)
    try:
        host, port = split_host_port(address)
        client = HostAddress(str(ip_address(host)), port)
    except ValueError:
        raise InvalidParameter(
            f"{FOR_ADDRESS_FIELD} {address[:64]!r}: the numeric address and port of the client are expected"
        ) from None
    for name, value in ((FOR_TEXT_FIELD, text), (FOR_SIGNATURE_FIELD, signature)):
        if len(value) > MAX_TEXT_CHARS:
            raise InvalidParameter(f"{name} has {len(value)} characters, the limit is {MAX_TEXT_CHARS}")
    return Speech(client, account.partition("/")[0], text, signature)


def parse_authorization(header: str) -> tuple[str, str]:
    """Return account and signature of a client's header `authorization`. Raises `InvalidParameter`."""
    algorithm, _, rest = header.strip().partition(" ")
    if algorithm != ALGORITHM:
        raise InvalidParameter(f"authorization {algorithm[:32]!r}: {ALGORITHM} is expected")
    fields: dict[str, str] = {}
    for field in rest.split(","):
        name, _, value = field.strip().partition("=")
        fields[name] = value.strip()
    account, signature = fields.get("Credential", "").partition("/")[0], fields.get("Signature", "")
    if not account or not signature:
        raise InvalidParameter("authorization: Credential=ACCOUNT and Signature=HEX are expected")
    if fields.get("SignedHeaders", SIGNED_HEADER).lower() != SIGNED_HEADER:
        raise InvalidParameter(f"authorization: SignedHeaders={fields['SignedHeaders'][:64]}: expected {SIGNED_HEADER}")
    return account, signature


def sign_text(secret: str, text: str) -> str:
    """Return the signature of a text: HMAC-SHA1 in hexadecimal digits of lower case."""
    return hmac.digest(secret.encode(errors="replace"), text.encode(errors="replace"), "sha1").hex()


def format_date(epoch_s: float) -> str:
    """Return a time, in seconds since 1970, as the date that clients sign."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime(_DATE)


def parse_date(text: str) -> float:
    """Return the time of a date that a client signed, in seconds since 1970. Raises ValueError for other texts."""
    if _RFC_3339.fullmatch(text):
        return datetime.fromisoformat(text).timestamp()
    if len(text) != _DATE_CHARS:
        raise ValueError(f"{text[:32]!r} is no date such as 20301231T235959Z")
    return datetime.strptime(text, _DATE).replace(tzinfo=UTC).timestamp()
