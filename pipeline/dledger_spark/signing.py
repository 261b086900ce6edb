"""Account for the signatures of requests to brokers with access control, and TLS of connections.

The variable `DLEDGER_CREDENTIALS` names a file on every machine that runs a part of a job, the driver's too. Its first
line is the account, its second the account's secret. Both are no options of the source, so they do not appear in plans,
logs or Spark's pages.

`DLEDGER_TLS_CA` names a file with the authorities of certificates in PEM, and turns TLS on. Servers that ask for a
certificate get the one in the file `DLEDGER_TLS_CERT`; `DLEDGER_TLS_KEY` names its key. Executors may have nothing but
the standard library, so only the functions for our client import more.
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
    """Return this machine's account, None without one. Raises `SourceError`, which shows nothing from the file."""
    path = os.environ.get(CREDENTIALS_VARIABLE, "")
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
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
    """Return this machine's credentials for our client, None without any. Raises as `account` does."""
    from dledger_client import Credentials

    signer = account()
    return None if signer is None else Credentials(*signer)


def tls_context() -> ssl.SSLContext | None:
    """Return the TLS context of connections, None if they are plain. Raises `SourceError`."""
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
    """Return this machine's TLS settings for our client, None if connections are plain."""
    from dledger_client import Tls

    authority, certificate, key = (os.environ.get(name) or None for name in _TLS_VARIABLES)
    return None if authority is None else Tls(authority, certificate, key)


def signed(ext: Mapping[str, str], body: bytes, signer: Account) -> dict[str, str]:
    """Return the ext fields of a request with account and signature, as in `dledger_remoting.signatures`."""
    fields = {**ext, "AccessKey": signer.name}
    fields.pop("Signature", None)
    names = sorted(fields, key=lambda name: name.encode("utf-16-be"))
    text = "".join([fields[name] for name in names]).encode(errors="replace") + body
    fields["Signature"] = b64encode(hmac.digest(signer.secret.encode(errors="replace"), text, "sha1")).decode()
    return fields
