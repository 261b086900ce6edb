"""Accounts and rights: who there is, what each may do, whether somebody may do something, and changes of all that."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import quote

import msgspec

from dledger_admin.operations import accounts
from dledger_admin.operations.accounts import AccountChange, AccountLine, RuleChange, RuleLine, Verdict
from dledger_admin.operations.errors import OperationError
from dledger_client import AccessRule

from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, select_rows

LIST: Final = "/accounts"
MAY: Final = "/may"
ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All", "Log", "Speak")
"""Actions that rules are about, in the words of `dledger acl`."""


class Accounts(msgspec.Struct, frozen=True):
    """A page of the accounts of all broker groups. `is_off` says that access control is off for this request."""

    accounts: list[AccountLine]
    rows: Rows
    is_off: bool


class Named(msgspec.Struct, frozen=True):
    """The name of an account."""

    account: str


class Account(msgspec.Struct, frozen=True):
    """An account on each broker group, and its rules there."""

    account: str
    lines: list[AccountLine]
    rules: list[RuleLine]


class Question(msgspec.Struct, frozen=True):
    """Question about an account: an action, a resource and an address. Nothing is asked without an account."""

    account: str = ""
    action: str = "Pub"
    resource: str = ""
    source: str = "127.0.0.1"


class Answered(msgspec.Struct, frozen=True):
    """The answer of each broker group; None without a question."""

    verdicts: list[Verdict] | None


class Making(Named, frozen=True):
    """An account to make; `admin` may do everything."""

    admin: bool = False


class Enabling(Named, frozen=True):
    """An account whose requests are to be refused, or taken again."""

    enabled: bool


class Granting(Named, frozen=True):
    """A rule for an account. `actions` and `sources` are separated by spaces or commas; no source means all."""

    resource: str
    actions: str
    sources: str = ""
    decision: Literal["allow", "deny"] = "allow"


class Revoking(Named, frozen=True):
    """A rule that is to go. `default` is a rule that counts if no other does."""

    resource: str
    default: bool = False


async def list_accounts(call: Call, wanted: Search) -> Accounts:
    """Return one page of the accounts; none where access control is off."""
    if call.access.credentials is None:
        return Accounts([], Rows(1, 1, 0, 0), is_off=True)
    async with call.access.accounts() as admin:
        shown, rows = select_rows(await accounts.lines(admin), wanted, lambda line: line.account)
    return Accounts(shown, rows, is_off=False)


async def describe(call: Call, wanted: Named) -> Account:
    """Return one account with its rules. Raises `MissingError`."""
    async with call.access.accounts() as admin:
        await accounts.require_account(admin, wanted.account)
        lines = [line for line in await accounts.lines(admin) if line.account == wanted.account]
        return Account(wanted.account, lines, await accounts.rule_lines(admin, wanted.account))


async def may(call: Call, wanted: Question) -> Answered:
    """Return whether an account may do something. Raises `OperationError` for what is no action or resource."""
    if not wanted.account or not wanted.resource:
        return Answered(None)
    async with call.access.accounts() as admin:
        return Answered(await accounts.judge(admin, wanted.account, wanted.action, wanted.resource, wanted.source))


async def what_making_does(_: Call, wanted: Making) -> list[str]:
    """Return what making an account does."""
    rights = "may do everything" if wanted.admin else "may do nothing until it gets rights"
    return [f"account {wanted.account} {rights}", "its secret is shown once, on the next page"]


async def make(call: Call, wanted: Making) -> AccountChange:
    """Make an account with a new secret."""
    async with call.access.accounts() as admin:
        return await accounts.create(admin, wanted.account, is_admin=wanted.admin)


async def what_enabling_does(call: Call, wanted: Enabling) -> list[str]:
    """Return what disabling or enabling an account does."""
    async with call.access.accounts() as admin:
        await accounts.require_account(admin, wanted.account)
    verb = "are taken again" if wanted.enabled else "are refused from then on, also on open connections"
    return [f"requests of account {wanted.account} {verb}"]


async def set_enabled(call: Call, wanted: Enabling) -> AccountChange:
    """Disable or enable an account."""
    async with call.access.accounts() as admin:
        return await accounts.set_enabled(admin, wanted.account, is_enabled=wanted.enabled)


async def what_goes(call: Call, wanted: Named) -> list[str]:
    """Return what goes with an account."""
    async with call.access.accounts() as admin:
        return await accounts.what_deleting_loses(admin, wanted.account)


async def delete(call: Call, wanted: Named) -> AccountChange:
    """Delete an account with its rules."""
    async with call.access.accounts() as admin:
        return await accounts.delete(admin, wanted.account)


async def what_granting_does(call: Call, wanted: Granting) -> list[str]:
    """Return what a rule allows or denies, and what it replaces."""
    async with call.access.accounts() as admin:
        return await accounts.what_granting_does(admin, wanted.account, _rule(wanted))


async def grant(call: Call, wanted: Granting) -> RuleChange:
    """Give an account a rule."""
    async with call.access.accounts() as admin:
        return await accounts.grant(admin, wanted.account, _rule(wanted))


async def what_revoking_does(call: Call, wanted: Revoking) -> list[str]:
    """Return the rules that go."""
    async with call.access.accounts() as admin:
        return await accounts.what_revoking_does(admin, wanted.account, wanted.resource)


async def revoke(call: Call, wanted: Revoking) -> RuleChange:
    """Revoke a rule of an account."""
    async with call.access.accounts() as admin:
        return await accounts.revoke(admin, wanted.account, wanted.resource, is_default=wanted.default)


def _rule(wanted: Granting) -> AccessRule:
    actions = tuple(wanted.actions.replace(",", " ").split())
    if not actions:
        raise OperationError(f"a rule needs an action: {', '.join(ACTIONS)}")
    sources = tuple(wanted.sources.replace(",", " ").split())
    return AccessRule(wanted.resource.strip(), actions, sources, wanted.decision == "allow")


def page_of(account: str) -> str:
    """Return the path of an account's page."""
    return f"{LIST}/{quote(account, safe='')}"


def _told(_: Named, done: AccountChange) -> str:
    secret = f" Its secret, which is shown only now: {done.secret}" if done.secret else ""
    return f"Account {done.account} is {done.state}.{secret}"


def _told_rule(_: Named, done: RuleChange) -> str:
    return f"The rule of account {done.account} on {done.resource} is {done.state}."


def _after(wanted: Named) -> str:
    return page_of(wanted.account)


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Accounts of each broker group.",
        wanted=Search,
        answer=list_accounts,
        template="accounts.html",
        section="accounts",
    ),
    Look(
        path=f"{LIST}/{{account}}",
        summary="An account: its state and its rules.",
        wanted=Named,
        answer=describe,
        template="account.html",
        section="accounts",
    ),
    Look(
        path=MAY,
        summary="Whether an account may do something.",
        wanted=Question,
        answer=may,
        template="may.html",
        section="accounts",
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/change/account",
        summary="Make an account",
        wanted=Making,
        effects=what_making_does,
        act=make,
        told=_told,
        after=_after,
        section="accounts",
    ),
    Change(
        path=f"{LIST}/{{account}}/enabled",
        summary="Disable or enable an account",
        wanted=Enabling,
        effects=what_enabling_does,
        act=set_enabled,
        told=_told,
        after=_after,
        section="accounts",
    ),
    Change(
        path=f"{LIST}/{{account}}/delete",
        summary="Delete an account",
        wanted=Named,
        effects=what_goes,
        act=delete,
        told=_told,
        after=lambda _: LIST,
        section="accounts",
    ),
    Change(
        path=f"{LIST}/{{account}}/grant",
        summary="Give an account a rule",
        wanted=Granting,
        effects=what_granting_does,
        act=grant,
        told=_told_rule,
        after=_after,
        section="accounts",
    ),
    Change(
        path=f"{LIST}/{{account}}/revoke",
        summary="Revoke a rule",
        wanted=Revoking,
        effects=what_revoking_does,
        act=revoke,
        told=_told_rule,
        after=_after,
        section="accounts",
    ),
]
