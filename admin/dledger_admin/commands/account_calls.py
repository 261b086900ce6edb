"""How commands about accounts speak to brokers: as the account of who has the key file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from dledger_client import AccountAdmin
from dledger_remoting.root_account import root_credentials
from dledger_spark.signing import client_tls

from ..errors import AdminError
from .client_calls import run
from .options import AbsolutePath

Command = TypeVar("Command", bound=Callable[..., object])
Result = TypeVar("Result")

KEY_FILE_VARIABLE: Final = "DLEDGER_KEY_FILE"


def key_file_option(command: Command) -> Command:
    """Add `--key-file FILE`, as parameter `key_file`; the variable `DLEDGER_KEY_FILE` stands in for it."""
    return click.option(
        "--key-file",
        type=AbsolutePath(),
        required=True,
        envvar=KEY_FILE_VARIABLE,
        show_envvar=True,
        metavar="FILE",
        help="The brokers' `access_key_file`.",
    )(command)


def with_accounts(namesrv: str, key_file: Path, work: Callable[[AccountAdmin], Awaitable[Result]]) -> Result:
    """Run `work` with a started `AccountAdmin`; raises `AdminError`, in which nothing of the key file stands."""
    try:
        credentials = root_credentials(key_file)
    except OSError as error:
        raise AdminError(f"the key file {key_file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AdminError(f"the key file {key_file}: {error}") from None

    async def session() -> Result:
        async with AccountAdmin(namesrv, credentials, tls=client_tls()) as admin:
            return await work(admin)

    return run(session, namesrv)
