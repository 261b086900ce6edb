"""`dledger acl`: what accounts may do."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dledger_admin.errors import require
from dledger_client import AccessRule, AccountAdmin

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .account_calls import key_file_option, with_accounts
from .options import namesrv_option


class RuleLine(msgspec.Struct, frozen=True):
    """A rule of an account on one broker group."""

    broker_group: str
    account: str
    resource: str
    actions: list[str]
    sources: list[str]
    decision: str
    default: bool


class RuleChange(msgspec.Struct, frozen=True):
    """Result of `acl grant` and `acl revoke`."""

    account: str
    resource: str
    state: str


class Verdict(msgspec.Struct, frozen=True):
    """Result of `acl test`."""

    broker_group: str
    account: str
    action: str
    resource: str
    verdict: str


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

    async def work(accounts: AccountAdmin) -> None:
        await accounts.grant(account, rule)

    with_accounts(namesrv, key_file, work)
    emit(RuleChange(account, resource, "denied" if deny else "granted"), output, _render_change)


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

    async def work(accounts: AccountAdmin) -> None:
        await accounts.revoke(account, resource, is_default=is_default)

    with_accounts(namesrv, key_file, work)
    emit(RuleChange(account, resource or "all resources", "revoked"), output, _render_change)


@acl.command("list")
@namesrv_option
@key_file_option
@click.argument("account", required=False)
@output_option
def list_rules(namesrv: str, key_file: Path, account: str | None, output: str) -> None:
    """List the rules of an account, or of all."""

    async def work(accounts: AccountAdmin) -> list[RuleLine]:
        return [
            RuleLine(
                group,
                name,
                rule.resource,
                list(rule.actions),
                list(rule.sources),
                "allow" if rule.allow else "deny",
                rule.is_default,
            )
            for group, rules_by_account in (await accounts.rules()).items()
            for name, rules in rules_by_account.items()
            for rule in rules
            if account in (None, name)
        ]

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
        verdicts: list[Verdict] = []
        rules = await accounts.rules()
        for group, infos in (await accounts.accounts()).items():
            info = next((candidate for candidate in infos if candidate.name == account), None)
            if info is None:
                raise AdminError(
                    f"there is no account {account!r} on {group}; `dledger account list` shows those that are"
                )
            if not info.is_enabled:
                verdict = "the account is disabled"
            elif info.is_admin:
                verdict = "allowed"
            else:
                verdict = _judge(rules.get(group, {}).get(account, []), action, resource, source)
            verdicts.append(Verdict(group, account, action, resource, verdict))
        return verdicts

    result = with_accounts(namesrv, key_file, work)
    emit(result, output, lambda verdicts: "\n".join(f"{line.broker_group}: {line.verdict}" for line in verdicts))
    if any(line.verdict != "allowed" for line in result):
        raise click.exceptions.Exit(1)


def _judge(rules: list[AccessRule], action: str, resource: str, source: str) -> str:
    """Judge an action by the rules of an account, as brokers do."""
    from dledger_broker.features.accounts.rules import AccountRules, Decision, demand_of
    from dledger_broker.features.accounts.table import Rule
    from dledger_remoting.errors import InvalidParameter

    custom, default = (
        [
            Rule(rule.resource, rule.actions, rule.sources, rule.allow)
            for rule in rules
            if rule.is_default is default_flag
        ]
        for default_flag in (False, True)
    )
    try:
        decision = AccountRules(custom, default).decide(demand_of(action, resource), source)
    except InvalidParameter as error:
        raise AdminError(error.remark) from error
    return {Decision.ALLOWED: "allowed", Decision.DENIED: "denied by a rule"}.get(decision, "no rule allows it")


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
