"""`dledger acl`: what accounts may do."""

from __future__ import annotations

from pathlib import Path

import click

from dledger_admin.errors import require
from dledger_client import AccessRule, AccountAdmin

from ..help import HelpGroup
from ..operations import accounts as operations
from ..operations.accounts import RuleChange, RuleLine, Verdict
from ..output import columns, emit, output_option
from .account_calls import key_file_option, with_accounts
from .options import namesrv_option


@click.group(cls=HelpGroup)
def acl() -> None:
    """Grant, revoke, list and test rights of accounts.

    A RESOURCE is Topic:NAME, Group:NAME or Cluster:NAME, where NAME may end with *. An ACTION is Pub, Sub, Create,
    Update, Delete, Get, List, All, or Log, which reads the whole log.
    """


@acl.command()
@namesrv_option
@key_file_option
@click.argument("account")
@click.argument("resource")
@click.argument("actions", metavar="ACTION...", nargs=-1, required=True)
@click.option("--deny", is_flag=True, help="Refuse these actions, even if wider rules allow them.")
@click.option(
    "--source", "sources", multiple=True, metavar="ADDRESS", help="Only from an address or network; repeatable."
)
@click.option(
    "--default", "is_default", is_flag=True, help="Apply the rule only if no other rule of the account applies."
)
@output_option
def grant(
    namesrv: str,
    key_file: Path,
    account: str,
    resource: str,
    actions: tuple[str, ...],
    deny: bool,
    sources: tuple[str, ...],
    is_default: bool,
    output: str,
) -> None:
    """Give an account a rule on a resource; it replaces the account's earlier rule on the same resource."""
    rule = AccessRule(resource, actions, sources, not deny, is_default)

    async def work(accounts: AccountAdmin) -> RuleChange:
        return await operations.grant(accounts, account, rule)

    emit(with_accounts(namesrv, key_file, work), output, _render_change)


@acl.command()
@namesrv_option
@key_file_option
@click.argument("account")
@click.argument("resource", required=False)
@click.option("--default", "is_default", is_flag=True, help="Revoke the rule that applies if no other rule does.")
@output_option
def revoke(
    namesrv: str,
    key_file: Path,
    account: str,
    resource: str | None,
    is_default: bool,
    output: str,
) -> None:
    """Revoke an account's rule on a resource, or all of its rules."""

    async def work(accounts: AccountAdmin) -> RuleChange:
        return await operations.revoke(accounts, account, resource, is_default=is_default)

    emit(with_accounts(namesrv, key_file, work), output, _render_change)


@acl.command("list")
@namesrv_option
@key_file_option
@click.argument("account", required=False)
@output_option
def list_rules(namesrv: str, key_file: Path, account: str | None, output: str) -> None:
    """List the rules of an account, or of all."""

    async def work(accounts: AccountAdmin) -> list[RuleLine]:
        return await operations.rule_lines(accounts, account)

    emit(with_accounts(namesrv, key_file, work), output, _render)


@acl.command()
@namesrv_option
@key_file_option
@click.argument("account")
@click.argument("action")
@click.argument("resource")
@click.option("--source", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address of the client.")
@output_option
def test(namesrv: str, key_file: Path, account: str, action: str, resource: str, source: str, output: str) -> None:
    """Show whether an account may do ACTION to RESOURCE. The exit code is 1 if it may not on some broker group."""
    require("broker", "isal", "numpy")

    async def work(accounts: AccountAdmin) -> list[Verdict]:
        return await operations.judge(accounts, account, action, resource, source)

    result = with_accounts(namesrv, key_file, work)
    emit(result, output, lambda verdicts: "\n".join(f"{line.broker_group}: {line.verdict}" for line in verdicts))
    if any(line.verdict != "allowed" for line in result):
        raise click.exceptions.Exit(1)


def _render_change(result: RuleChange) -> str:
    return f"account {result.account}: {result.resource} {result.state}"


def _render(result: list[RuleLine]) -> str:
    if not result:
        return "there are no rules: `dledger acl grant` gives an account one"
    return columns(
        ("broker group", "account", "resource", "actions", "from", "decision", "by default"),
        [
            (
                line.broker_group,
                line.account,
                line.resource,
                ",".join(line.actions),
                ",".join(line.sources) or "everywhere",
                line.decision,
                "yes" if line.default else "no",
            )
            for line in result
        ],
    )
