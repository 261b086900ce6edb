"""Bugs of access control."""

# ruff: noqa: SLF001 - patches private names

from __future__ import annotations

from dledger_broker.features.accounts.judge import Accounts
from dledger_broker.features.accounts.table import Account, AccountTable, PutAccount
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Rights
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("accounts")


CATALOGUE.add(
    "rules-outlive-their-change",
    "a change of an account's rights counts from then on",
    (Accounts, "_current", lambda self: self._table),
)

_admit = Access.admit


def _admit_what_others_passed_on(self: Access, request: Request, rights: Rights) -> None:
    if not request.origin.is_forwarded:
        _admit(self, request, rights)


CATALOGUE.add(
    "forwarded-requests-not-judged",
    "the leader judges a forwarded request, because the forwarding node has not judged it",
    (Access, "admit", _admit_what_others_passed_on),
)

_secrets_of = Accounts._secrets_of


def _first_secret(self: Accounts, account: Account) -> tuple[str, ...]:
    known: dict[str, tuple[str, ...]] = vars(self).setdefault("first_secrets", {})
    return known.setdefault(account.put.name, _secrets_of(self, account))


CATALOGUE.add(
    "secret-outlives-its-change",
    "a new secret makes the earlier secret worthless",
    (Accounts, "_secrets_of", _first_secret),
)


def _remove_nothing(self: AccountTable, name: str) -> None:
    _ = self, name


CATALOGUE.add(
    "account-outlives-its-deletion",
    "a deleted account may do nothing",
    (AccountTable, "_remove", _remove_nothing),
)
CATALOGUE.add(
    "accounts-not-in-snapshots",
    "a restart forgets no account",
    (AccountTable, "capture_frames", lambda _self, _now: {}),
)

_put = AccountTable._put


def _put_without_rules(self: AccountTable, account: Account) -> None:
    put = account.put
    _put(self, Account(PutAccount(put.name, put.sealed, put.admin, put.enabled, put.white_list), account.version))


CATALOGUE.add(
    "rules-not-replicated",
    "the rules of an account are the rules in the log",
    (AccountTable, "_put", _put_without_rules),
)
