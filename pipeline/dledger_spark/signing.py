"""Account that requests to brokers are signed for, and TLS, where they have access control or ask for TLS.

The variable `DLEDGER_CREDENTIALS` names a file on every machine that runs a part of a job, the driver's too: its first
line is the account, its second the account's secret. Neither is an option of the source, so neither stands in a plan,
in a log or on the pages of Spark. `DLEDGER_TLS_CA` names the authorities of certificates in PEM and has connections be
TLS; `DLEDGER_TLS_CERT` and `DLEDGER_TLS_KEY` are what is shown to servers that ask for a certificate. The standard
library only, as executors have no more.
"""

from __future__ import annotations

import hmac
import os
import ssl
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import SourceError

if TYPE_CHECKING:
    from dledger_client import Credentials, Tls

CREDENTIALS_VARIABLE: Final = "DLEDGER_CREDENTIALS"
TLS_CA_VARIABLE: Final = "DLEDGER_TLS_CA"
TLS_CERT_VARIABLE: Final = "DLEDGER_TLS_CERT"
TLS_KEY_VARIABLE: Final = "DLEDGER_TLS_KEY"
_TLS_VARIABLES: Final = (TLS_CA_VARIABLE, TLS_CERT_VARIABLE, TLS_KEY_VARIABLE)


class Account(NamedTuple):
    """An account and its secret, which no text of this object shows."""

    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Account({self.name!r})"


def account() -> Account | None:
    """Who signs here, if anybody does. Raises `SourceError`, which shows nothing of the file."""
    path = os.environ.get(CREDENTIALS_VARIABLE, "")
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SourceError(f"{CREDENTIALS_VARIABLE} = {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SourceError(f"{CREDENTIALS_VARIABLE} = {path}: it is not UTF-8") from None
    name, secret = (line.strip() for line in [*lines, "", ""][:2])
    if not name or not secret:
        raise SourceError(
            f"{CREDENTIALS_VARIABLE} = {path}: the first line of the file is the account, the second its secret"
        )
    return Account(name, secret)


def client_credentials() -> Credentials | None:
    """Who a client of ours signs for here. Raises as `account` does."""
    from dledger_client import Credentials

    who = account()
    return None if who is None else Credentials(*who)


def tls_context() -> ssl.SSLContext | None:
    """What connections are secured with, None if they are plain. Raises `SourceError`."""
    authority = os.environ.get(TLS_CA_VARIABLE, "")
    if not authority:
        return None
    certificate = os.environ.get(TLS_CERT_VARIABLE, "")
    try:
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate:
            context.load_cert_chain(certificate, os.environ.get(TLS_KEY_VARIABLE) or None, password="")
    except OSError as error:
        raise SourceError(f"{TLS_CA_VARIABLE} = {authority}, {TLS_CERT_VARIABLE} = {certificate}: {error}") from error
    return context


def client_tls() -> Tls | None:
    """TLS of a client of ours here."""
    from dledger_client import Tls

    authority, certificate, key = (os.environ.get(name) or None for name in _TLS_VARIABLES)
    return None if authority is None else Tls(authority, certificate, key)


def signed(ext: Mapping[str, str], body: bytes, who: Account) -> dict[str, str]:
    """The ext fields of a request with account and signature, as `dledger_remoting.signatures` has them."""
    named = {**ext, "AccessKey": who.name}
    named.pop("Signature", None)
    names = sorted(named, key=lambda name: name.encode("utf-16-be"))
    text = "".join([named[name] for name in names]).encode(errors="replace") + body
    named["Signature"] = b64encode(hmac.digest(who.secret.encode(errors="replace"), text, "sha1")).decode()
    return named
