"""Account that commands sign their requests for, and TLS, where brokers have either.

The variable `DLEDGER_CREDENTIALS` names a file whose first line is the account and whose second is its secret: neither
stands in the shell's history, nor among the arguments that other users of the machine see. `DLEDGER_TLS_CA` names the
authorities whose certificates are accepted and turns TLS on (empty: plain); `DLEDGER_TLS_CERT` and `DLEDGER_TLS_KEY`
are what is shown to servers that ask for a certificate.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypedDict

from dledger_client import Credentials, Tls

from ..errors import AdminError

CREDENTIALS_VARIABLE: Final = "DLEDGER_CREDENTIALS"


TLS_CA_VARIABLE: Final = "DLEDGER_TLS_CA"
TLS_CERT_VARIABLE: Final = "DLEDGER_TLS_CERT"
TLS_KEY_VARIABLE: Final = "DLEDGER_TLS_KEY"


class Signing(TypedDict, total=False):
    """Options of every client."""

    credentials: Credentials
    tls: Tls


def signing() -> Signing:
    """What has a client sign, and speak TLS; nothing if the variables are not set. Raises `AdminError`, which shows
    nothing of the files.
    """
    options: Signing = {}
    credentials, tls = _credentials(), named_tls()
    if credentials is not None:
        options["credentials"] = credentials
    if tls is not None:
        options["tls"] = tls
    return options


def named_tls() -> Tls | None:
    """TLS as the variables say; None if they say nothing."""
    authority = os.environ.get(TLS_CA_VARIABLE, "")
    if not authority:
        return None
    certificate, key = (os.environ.get(name) or None for name in (TLS_CERT_VARIABLE, TLS_KEY_VARIABLE))
    return Tls(authority, certificate, key)


def _credentials() -> Credentials | None:
    path = os.environ.get(CREDENTIALS_VARIABLE, "")
    if not path:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise AdminError(f"{CREDENTIALS_VARIABLE} = {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise AdminError(f"{CREDENTIALS_VARIABLE} = {path}: it is not UTF-8") from None
    account, secret = (line.strip() for line in [*lines, "", ""][:2])
    if not account or not secret:
        raise AdminError(
            f"{CREDENTIALS_VARIABLE} = {path}: the first line of the file is the account, the second its secret"
        )
    return Credentials(account, secret)
