"""Accounts and rights: who there is, what each may do, and whether somebody may do something."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from dledger_base.similar_names import did_you_mean
from dledger_client import AccessRule, AccountAdmin, AccountInfo

from .errors import MissingError, OperationError

_SECRET_BYTES: Final = 24


class AccountLine(msgspec.Struct, frozen=True):
    """An account of one broker group."""

    broker_group: str
    account: str
    admin: bool
    enabled: bool


class RuleLine(msgspec.Struct, frozen=True):
    """A rule of an account on one broker group."""

    broker_group: str
    account: str
    resource: str
    actions: list[str]
    sources: list[str]
    decision: str
    default: bool


class Verdict(msgspec.Struct, frozen=True):
    """Answer of one broker group to a question about rights; `verdict` is `allowed`, or says why not."""

    broker_group: str
    account: str
    action: str
    resource: str
    verdict: str


class AccountChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of a change; `secret` is one that was made, and is shown nowhere else."""

    account: str
    state: str
    secret: str | None = None


class RuleChange(msgspec.Struct, frozen=True):
    """A change of an account's rules on a resource."""

    account: str
    resource: str
    state: str


async def lines(accounts: AccountAdmin) -> list[AccountLine]:
    """Return the accounts of every broker group."""
    return [
        AccountLine(group, info.name, info.is_admin, info.is_enabled)
        for group, infos in (await accounts.accounts()).items()
        for info in infos
    ]


async def rule_lines(accounts: AccountAdmin, account: str | None = None) -> list[RuleLine]:
    """Return the rules of an account, or of all."""
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


async def judge(accounts: AccountAdmin, account: str, action: str, resource: str, source: str) -> list[Verdict]:
    """Return whether an account may do an action to a resource from an address, on every broker group.

    Raises `MissingError` for an unknown account, and `OperationError` for what is no action or resource.
    """
    rules = await accounts.rules()
    verdicts: list[Verdict] = []
    for group, infos in (await accounts.accounts()).items():
        info = _require(infos, account, group)
        own_rules = rules.get(group, {}).get(account, [])
        verdicts.append(Verdict(group, account, action, resource, _verdict(info, own_rules, action, resource, source)))
    return verdicts


async def create(accounts: AccountAdmin, name: str, *, is_admin: bool) -> AccountChange:
    """Create an account without rights; the result has its secret."""
    secret = make_secret()
    await accounts.create(name, secret, is_admin=is_admin)
    return AccountChange(name, "created", secret)


def make_secret() -> str:
    """Return a new secret of an account."""
    return secrets.token_urlsafe(_SECRET_BYTES)


async def what_deleting_loses(accounts: AccountAdmin, name: str) -> list[str]:
    """Describe the account and its rules on each broker group."""
    rules = await accounts.rules()
    return [
        f"account {name} of {broker_group}, with {len(rules.get(broker_group, {}).get(name, ()))} rules"
        for broker_group, infos in sorted((await accounts.accounts()).items())
        if any(info.name == name for info in infos)
    ] or [f"nothing: there is no account {name}"]


async def delete(accounts: AccountAdmin, name: str) -> AccountChange:
    """Delete an account with its rules. Raises `MissingError` if there is none."""
    await require_account(accounts, name)
    await accounts.delete(name)
    return AccountChange(name, "deleted")


async def set_enabled(accounts: AccountAdmin, name: str, *, is_enabled: bool) -> AccountChange:
    """Let brokers refuse all requests of an account, or take them again."""
    await accounts.change(name, is_enabled=is_enabled)
    return AccountChange(name, "enabled" if is_enabled else "disabled")


async def grant(accounts: AccountAdmin, account: str, rule: AccessRule) -> RuleChange:
    """Give an account a rule. It replaces the account's rule on the same resource."""
    await accounts.grant(account, rule)
    return RuleChange(account, rule.resource, "granted" if rule.allow else "denied")


async def revoke(accounts: AccountAdmin, account: str, resource: str | None, *, is_default: bool = False) -> RuleChange:
    """Revoke an account's rule on a resource, or all of its rules."""
    await accounts.revoke(account, resource, is_default=is_default)
    return RuleChange(account, resource or "all resources", "revoked")


async def what_granting_does(accounts: AccountAdmin, account: str, rule: AccessRule) -> list[str]:
    """Describe a new rule, and the rule that it replaces. Raises `MissingError` for an unknown account."""
    await require_account(accounts, account)
    told = f"account {account} {'may' if rule.allow else 'must not'} {', '.join(rule.actions)} {rule.resource}"
    old = {
        f"this replaces its rule on {line.resource}: {line.decision} {', '.join(line.actions)}"
        for line in await rule_lines(accounts, account)
        if line.resource == rule.resource
    }
    return [told + (f" from {', '.join(rule.sources)}" if rule.sources else ""), *sorted(old)]


async def what_revoking_does(accounts: AccountAdmin, account: str, resource: str) -> list[str]:
    """Describe the rules that go. Raises `MissingError` if there is none."""
    found = [line for line in await rule_lines(accounts, account) if line.resource == resource]
    if not found:
        raise MissingError(f"account {account} has no rule on {resource}")
    return [
        f"the rule of {account} on {line.broker_group}: {line.decision} {', '.join(line.actions)} {line.resource}"
        for line in found
    ]


async def require_account(accounts: AccountAdmin, name: str) -> None:
    """Raise `MissingError` if no broker group has an account."""
    known_names = {info.name for infos in (await accounts.accounts()).values() for info in infos}
    if name not in known_names:
        hint = did_you_mean(name, known_names)
        raise MissingError(f"there is no account {name!r}", f"`dledger account list` shows those that there are{hint}")


def _require(infos: Sequence[AccountInfo], account: str, group: str) -> AccountInfo:
    info = next((candidate for candidate in infos if candidate.name == account), None)
    if info is None:
        raise MissingError(f"there is no account {account!r} on {group}; `dledger account list` shows those that are")
    return info


def _verdict(info: AccountInfo, rules: list[AccessRule], action: str, resource: str, source: str) -> str:
    if not info.is_enabled:
        return "the account is disabled"
    return "allowed" if info.is_admin else _judge(rules, action, resource, source)


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
        raise OperationError(error.remark) from error
    return {Decision.ALLOWED: "allowed", Decision.DENIED: "denied by a rule"}.get(decision, "no rule allows it")
