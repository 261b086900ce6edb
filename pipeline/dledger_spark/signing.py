"""Account that requests to brokers are signed for, where these have access control.

The variable `DLEDGER_CREDENTIALS` names a file on every machine that runs a part of a job, the driver's too: its first
line is the account, its second the account's secret. Neither is an option of the source, so neither stands in a plan,
in a log or on the pages of Spark. The standard library only, as executors have no more.
"""

from __future__ import annotations

import hmac
import os
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from .errors import SourceError

if TYPE_CHECKING:
    from dledger_client import Credentials

CREDENTIALS_VARIABLE: Final = "DLEDGER_CREDENTIALS"


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


def signed(ext: Mapping[str, str], body: bytes, who: Account) -> dict[str, str]:
    """The ext fields of a request with account and signature, as `dledger_remoting.signatures` has them."""
    named = {**ext, "AccessKey": who.name}
    named.pop("Signature", None)
    names = sorted(named, key=lambda name: name.encode("utf-16-be"))
    text = "".join([named[name] for name in names]).encode(errors="replace") + body
    named["Signature"] = b64encode(hmac.digest(who.secret.encode(errors="replace"), text, "sha1")).decode()
    return named
