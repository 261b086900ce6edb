"""`dledger account`: accounts of access control, and the key file that they rest on."""

from __future__ import annotations

import secrets
from base64 import b64encode
from pathlib import Path

import click

from dledger_base.access_keys import KEY_BYTES
from dledger_client import AccountAdmin

from ..asking import Asking, asks_first
from ..errors import AdminError
from ..help import HelpGroup
from ..operations import accounts as operations
from ..operations.accounts import AccountChange, AccountLine
from ..output import columns, emit, output_option
from .account_calls import key_file_option, with_accounts
from .options import AbsolutePath, namesrv_option
from .plain_acl import PlainAclError, read_plain_acl


@click.group(cls=HelpGroup)
def account() -> None:
    """Create, list, disable, rotate and reseal accounts, where brokers have access control."""


@account.command("new-key")
def new_key() -> None:
    """Print a new key, a line of the brokers' and name servers' `access_key_file`.

    Everybody who can read the file is an administrator. A changed file is read again within 5 s. To change the key, add
    a new one at the end of every file. Then move it to the front of every file, and run `dledger account reseal`. Only
    then take the old key out.
    """
    click.echo(b64encode(secrets.token_bytes(KEY_BYTES)).decode())


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@click.option("--admin", is_flag=True, help="Make an administrator, who may do everything.")
@output_option
def create(namesrv: str, key_file: Path, name: str, admin: bool, output: str) -> None:
    """Create an account without rights, and print its new secret, once."""

    async def work(accounts: AccountAdmin) -> AccountChange:
        return await operations.create(accounts, name, is_admin=admin)

    emit(with_accounts(namesrv, key_file, work), output, _render_change)


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@click.option("--keep-earlier", is_flag=True, help="Keep the old secret valid, too, until `drop-earlier`.")
@output_option
def rotate(namesrv: str, key_file: Path, name: str, keep_earlier: bool, output: str) -> None:
    """Give an account a new secret and print it, once; the old secret becomes invalid, unless it is kept."""
    secret = operations.make_secret()

    async def work(accounts: AccountAdmin) -> None:
        await accounts.change(name, secret=secret, keeps_earlier=keep_earlier)

    with_accounts(namesrv, key_file, work)
    emit(AccountChange(name, "rotated", secret), output, _render_change)


@account.command("drop-earlier")
@namesrv_option
@key_file_option
@click.argument("name")
@output_option
def drop_earlier(namesrv: str, key_file: Path, name: str, output: str) -> None:
    """Make the newest secret of an account the only valid one, after `rotate --keep-earlier`."""

    async def work(accounts: AccountAdmin) -> None:
        await accounts.drop_earlier(name)

    with_accounts(namesrv, key_file, work)
    emit(AccountChange(name, "has its newest secret alone"), output, _render_change)


@account.command()
@namesrv_option
@key_file_option
@output_option
def reseal(namesrv: str, key_file: Path, output: str) -> None:
    """Seal the secrets of all accounts with the first key of the brokers' key file, after it was changed."""

    async def work(accounts: AccountAdmin) -> list[str]:
        names = sorted({info.name for infos in (await accounts.accounts()).values() for info in infos})
        for name in names:
            await accounts.reseal(name)
        return names

    changes = [AccountChange(name, "resealed") for name in with_accounts(namesrv, key_file, work)]
    emit(changes, output, lambda result: "\n".join(map(_render_change, result)) or "there is no account")


@account.command()
@namesrv_option
@key_file_option
@click.argument("name")
@output_option
def disable(namesrv: str, key_file: Path, name: str, output: str) -> None:
    """Refuse all requests of an account from now on."""
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
@asks_first
@output_option
def delete(namesrv: str, key_file: Path, name: str, output: str, asking: Asking) -> None:
    """Delete an account with its rules; a missing account is an error."""

    async def list_effects(accounts: AccountAdmin) -> list[str]:
        return await operations.what_deleting_loses(accounts, name)

    if not asking.agreed(lambda: with_accounts(namesrv, key_file, list_effects), output):
        return

    async def work(accounts: AccountAdmin) -> AccountChange:
        return await operations.delete(accounts, name)

    emit(with_accounts(namesrv, key_file, work), output, _render_change)


@account.command("import")
@namesrv_option
@key_file_option
@click.argument("file", type=AbsolutePath())
@output_option
def import_accounts(namesrv: str, key_file: Path, file: Path, output: str) -> None:
    """Make the accounts of a `plain_acl.yml` of RocketMQ 4, with their secrets, permissions and white lists.

    Existing accounts are changed to what the file says; other accounts stay. The command may be repeated.
    """
    try:
        plain_acl = read_plain_acl(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AdminError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AdminError(f"{file} is no text") from error
    except PlainAclError as error:
        raise AdminError(f"{file}: {error}") from None

    async def work(accounts: AccountAdmin) -> None:
        for entry in plain_acl.accounts:
            await accounts.put_plain(entry)
        if plain_acl.white_list is not None:
            await accounts.put_white_list(plain_acl.white_list)

    with_accounts(namesrv, key_file, work)
    changes = [AccountChange(entry.access_key, "imported") for entry in plain_acl.accounts]
    emit(changes, output, lambda result: "\n".join(map(_render_change, result)) or "there is no account in the file")


@account.command("list")
@namesrv_option
@key_file_option
@output_option
def list_accounts(namesrv: str, key_file: Path, output: str) -> None:
    """List the accounts of every broker group."""
    emit(with_accounts(namesrv, key_file, operations.lines), output, _render)


def _set_enabled(namesrv: str, key_file: Path, name: str, output: str, *, is_enabled: bool) -> None:
    async def work(accounts: AccountAdmin) -> AccountChange:
        return await operations.set_enabled(accounts, name, is_enabled=is_enabled)

    emit(with_accounts(namesrv, key_file, work), output, _render_change)


def _render_change(result: AccountChange) -> str:
    change = f"account {result.account} {result.state}"
    return change if result.secret is None else f"{change}\nsecret: {result.secret}"


def _render(result: list[AccountLine]) -> str:
    if not result:
        return "there are no accounts: `dledger account create` makes one"
    rows = [
        (line.broker_group, line.account, "yes" if line.admin else "no", "yes" if line.enabled else "no")
        for line in result
    ]
    return columns(("broker group", "account", "admin", "enabled"), rows)
