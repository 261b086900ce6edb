"""`dledger account`: accounts of access control, and the key file that they rest on."""

from __future__ import annotations

import secrets
from base64 import b64encode
from pathlib import Path
from typing import Final

import click
import msgspec

from dledger_client import AccountAdmin
from dledger_remoting.root_account import KEY_BYTES

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .account_calls import key_file_option, with_accounts
from .options import AbsolutePath, namesrv_option
from .plain_acl import PlainAclError, read_plain_acl

_SECRET_BYTES: Final = 24


class AccountLine(msgspec.Struct, frozen=True):
    """An account of one broker group."""

    broker_group: str
    account: str
    admin: bool
    enabled: bool


class AccountChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a change; `secret` is one that was made, and is shown nowhere else."""

    account: str
    state: str
    secret: str | None = None


@click.group(cls=HelpGroup)
def account() -> None:
    """Create, list, disable and rotate accounts, where brokers have access control."""


@account.command("new-key")
def new_key() -> None:
    """Print a new key, a line of the brokers' and name servers' `access_key_file`.

    Who has the file is an administrator. Put a new key in front, restart the nodes, rotate the accounts, and only then
    take the old key out.
    """
    click.echo(b64encode(secrets.token_bytes(KEY_BYTES)).decode())


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@click.option("--admin", is_flag=True, help="An administrator, who may do everything.")
@output_option
def create(namesrv: str, key_file: Path, name: str, admin: bool, output: str) -> None:
    """Create an account without rights; its secret is made and printed, once."""
    secret = _new_secret()

    async def work(accounts: AccountAdmin) -> None:
        await accounts.create(name, secret, is_admin=admin)

    with_accounts(namesrv, key_file, work)
    emit(AccountChange(name, "created", secret), output, _render_change)


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@output_option
def rotate(namesrv: str, key_file: Path, name: str, output: str) -> None:
    """Give an account another secret, which is printed, once; the old one counts no longer."""
    secret = _new_secret()

    async def work(accounts: AccountAdmin) -> None:
        await accounts.change(name, secret=secret)

    with_accounts(namesrv, key_file, work)
    emit(AccountChange(name, "rotated", secret), output, _render_change)


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@output_option
def disable(namesrv: str, key_file: Path, name: str, output: str) -> None:
    """Refuse everything that an account asks for, from now on."""
    _set_enabled(namesrv, key_file, name, output, is_enabled=False)


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@output_option
def enable(namesrv: str, key_file: Path, name: str, output: str) -> None:
    """Give a disabled account its rights again."""
    _set_enabled(namesrv, key_file, name, output, is_enabled=True)


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@output_option
def delete(namesrv: str, key_file: Path, name: str, output: str) -> None:
    """Delete an account with its rules; none is no error."""

    async def work(accounts: AccountAdmin) -> None:
        await accounts.delete(name)

    with_accounts(namesrv, key_file, work)
    emit(AccountChange(name, "deleted"), output, _render_change)


@account.command("import")
@namesrv_option
@key_file_option
@click.argument("file", type=AbsolutePath())
@output_option
def import_accounts(namesrv: str, key_file: Path, file: Path, output: str) -> None:
    """Make the accounts of a `plain_acl.yml` of RocketMQ 4, with their secrets, permissions and white lists.

    Accounts that are there become what the file says; others stay. It may be repeated.
    """
    try:
        found = read_plain_acl(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise AdminError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AdminError(f"{file} is no text") from error
    except PlainAclError as error:
        raise AdminError(f"{file}: {error}") from None

    async def work(accounts: AccountAdmin) -> None:
        for one in found.accounts:
            await accounts.put_plain(one)
        if found.white_list is not None:
            await accounts.put_white_list(found.white_list)

    with_accounts(namesrv, key_file, work)
    changes = [AccountChange(one.access_key, "imported") for one in found.accounts]
    emit(changes, output, lambda result: "\n".join(map(_render_change, result)) or "there is no account in the file")


@account.command("list")
@namesrv_option
@key_file_option
@output_option
def list_accounts(namesrv: str, key_file: Path, output: str) -> None:
    """List the accounts of every broker group."""

    async def work(accounts: AccountAdmin) -> list[AccountLine]:
        return [
            AccountLine(group, one.name, one.is_admin, one.is_enabled)
            for group, found in (await accounts.accounts()).items()
            for one in found
        ]

    emit(with_accounts(namesrv, key_file, work), output, _render)


def _set_enabled(namesrv: str, key_file: Path, name: str, output: str, *, is_enabled: bool) -> None:
    async def work(accounts: AccountAdmin) -> None:
        await accounts.change(name, is_enabled=is_enabled)

    with_accounts(namesrv, key_file, work)
    emit(AccountChange(name, "enabled" if is_enabled else "disabled"), output, _render_change)


def _new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def _render_change(result: AccountChange) -> str:
    change = f"account {result.account} {result.state}"
    return change if result.secret is None else f"{change}\nsecret: {result.secret}"


def _render(result: list[AccountLine]) -> str:
    rows = [
        (one.broker_group, one.account, "yes" if one.admin else "no", "yes" if one.enabled else "no") for one in result
    ]
    return columns(("broker group", "account", "admin", "enabled"), rows)
