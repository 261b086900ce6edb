"""Account that commands sign their requests for, where brokers have access control.

The variable `DLEDGER_CREDENTIALS` names a file whose first line is the account and whose second is its secret: neither
stands in the shell's history, nor among the arguments that other users of the machine see.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, TypedDict

from dledger_client import Credentials

from ..errors import AdminError

CREDENTIALS_VARIABLE: Final = "DLEDGER_CREDENTIALS"


class Signing(TypedDict, total=False):
    """An option of every client."""

    credentials: Credentials


def signing() -> Signing:
    """What has a client sign; nothing if no account is named. Raises `AdminError`, which shows nothing of the file."""
    path = os.environ.get(CREDENTIALS_VARIABLE, "")
    if not path:
        return {}
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
    return {"credentials": Credentials(account, secret)}
