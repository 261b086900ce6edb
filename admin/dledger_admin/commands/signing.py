"""Account that commands sign their requests for, and TLS, where brokers have either.

The variable `DLEDGER_CREDENTIALS` names a file whose first line is the account and whose second is its secret. So
neither stands in the shell's history, or among the arguments that other users of the machine see.

`DLEDGER_TLS_CA` names the authorities whose certificates are accepted, and turns TLS on (empty: plain).
`DLEDGER_TLS_CERT` and `DLEDGER_TLS_KEY` are shown to servers that ask for a certificate. `dledger_spark.signing` reads
these variables, for commands and for Spark, because Spark's tasks can import nothing else.
"""

from __future__ import annotations

from typing import TypedDict

from dledger_client import Credentials, Tls
from dledger_spark.errors import SourceError
from dledger_spark.signing import client_credentials, client_tls

from ..errors import AdminError
from ..operations.access import Access


class Signing(TypedDict, total=False):
    """Options of every client."""

    credentials: Credentials
    tls: Tls


def signing() -> Signing:
    """Return the settings with which a client signs and speaks TLS, empty if the variables are not set.

    Raises `AdminError`, which shows nothing of the files.
    """
    options: Signing = {}
    try:
        credentials, tls = client_credentials(), client_tls()
    except SourceError as error:
        raise AdminError(str(error)) from error
    if credentials is not None:
        options["credentials"] = credentials
    if tls is not None:
        options["tls"] = tls
    return options


def access_without_account(namesrv: str) -> Access:
    """Return an access with TLS by the variables and no account, whatever they say. Raises as `signing` does."""
    try:
        return Access(namesrv, tls=client_tls())
    except SourceError as error:
        raise AdminError(str(error)) from error


def command_access(namesrv: str) -> Access:
    """Return the access of a command, by the variables. Raises as `signing` does."""
    return Access(namesrv, **signing())
