"""Calls of commands about accounts: they sign as the administrator, with a key derived from the key file."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from dledger_base.access_keys import access_keys
from dledger_base.errors import ConfigError
from dledger_client import AccountAdmin
from dledger_remoting.accounts import root_credentials
from dledger_spark.signing import client_tls

from ..errors import AdminError
from .client_calls import run
from .options import AbsolutePath

Command = TypeVar("Command", bound=Callable[..., object])
Result = TypeVar("Result")

KEY_FILE_VARIABLE: Final = "DLEDGER_KEY_FILE"


class _KeyFilePath(AbsolutePath):
    """Path of the key file. The error for a missing path says where the file is."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the end of that error."""
        del param, ctx
        return "`dledger up --secure` puts it at DIR/secure/access.keys; `. DIR/secure/client.env` sets the variable"


def key_file_option(command: Command) -> Command:
    """Add `--key-file FILE`, as parameter `key_file`; the variable `DLEDGER_KEY_FILE` stands in for it."""
    return click.option(
        "--key-file",
        type=_KeyFilePath(),
        required=True,
        envvar=KEY_FILE_VARIABLE,
        show_envvar=True,
        metavar="FILE",
        help="The brokers' `access_key_file`.",
    )(command)


def with_accounts(namesrv: str, key_file: Path, work: Callable[[AccountAdmin], Awaitable[Result]]) -> Result:
    """Run `work` with a started `AccountAdmin`; raises `AdminError`, in which nothing of the key file stands."""
    try:
        credentials = root_credentials(access_keys(key_file))
    except ConfigError as error:
        raise AdminError(str(error)) from None

    async def session() -> Result:
        async with AccountAdmin(namesrv, credentials, tls=client_tls()) as admin:
            return await work(admin)

    return run(session, namesrv)
