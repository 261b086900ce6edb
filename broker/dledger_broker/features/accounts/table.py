"""Table of accounts: secrets and rules of each, and the addresses that need no account."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "accounts"
"""Name of the feature. It must never change, because the log records it when the feature is activated."""


class Rule(NamedTuple):
    """Rule that allows or denies actions on a resource.

    `resource` is `Topic:name`, `Group:name*`, `Cluster:*` or `*`. The rule counts for clients from the addresses or
    networks in `sources`; for all clients if `sources` is empty.
    """

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    allow: bool = True


class PutAccount(msgspec.Struct, frozen=True):
    """Command that makes an account or replaces it.

    `sealed` is its sealed secret, or two of them, see `sealing`. From addresses in `white_list` a request needs only
    the account's name, no signature. Rules in `default` count only if no rule in `custom` matches.
    """

    name: str
    sealed: str
    admin: bool = False
    enabled: bool = True
    white_list: tuple[str, ...] = ()
    custom: tuple[Rule, ...] = ()
    default: tuple[Rule, ...] = ()


class DeleteAccount(msgspec.Struct, frozen=True):
    """Command that deletes an account with its rules."""

    name: str


class PutWhiteList(msgspec.Struct, frozen=True):
    """Command that replaces the global white list: addresses whose requests need no account."""

    patterns: tuple[str, ...] = ()


ACCOUNT_COMMANDS: Final[Kinds] = {60: PutAccount, 61: DeleteAccount, 62: PutWhiteList}


class AccountFrame(msgspec.Struct, frozen=True, tag="accounts"):
    """Frame with accounts, each with the index of the entry that put it."""

    rows: list[tuple[PutAccount, int]]


class WhiteListFrame(msgspec.Struct, frozen=True, tag="white-list"):
    """Frame with the global white list: addresses whose requests need no account."""

    patterns: tuple[str, ...]


class Account(NamedTuple):
    """Account, as the command `put` in the entry `version` made it."""

    put: PutAccount
    version: int


class AccountTable(Table):
    """Table of all accounts by name. `changes` counts the changes that this replica has applied or restored."""

    __slots__ = ("by_name", "changes", "digest", "white_list")

    digest: int

    frames = (AccountFrame, WhiteListFrame)

    def __init__(self) -> None:
        self.by_name: dict[str, Account] = {}
        """All accounts by name. Other code only reads it."""
        self.white_list: tuple[str, ...] = ()
        self.digest = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, name: str) -> Account | None:
        """Return an account; None if it does not exist."""
        return self.by_name.get(name)

    def names(self) -> list[str]:
        """Return the names of all accounts, sorted."""
        return sorted(self.by_name)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = changes
        self.changes += 1
        match command:
            case PutAccount():
                self._put(Account(command, entry.index))
            case DeleteAccount(name=name):
                self._remove(name)
            case PutWhiteList(patterns=patterns):
                self._put_white_list(patterns)

    def _put(self, account: Account) -> None:
        self._remove(account.put.name)
        self.by_name[account.put.name] = account
        self.digest = (self.digest + _hash(account)) & MASK

    def _remove(self, name: str) -> None:
        account = self.by_name.pop(name, None)
        if account is not None:
            self.digest = (self.digest - _hash(account)) & MASK

    def _put_white_list(self, patterns: tuple[str, ...]) -> None:
        old = _hash_white_list(self.white_list)
        self.white_list = patterns
        self.digest = (self.digest - old + _hash_white_list(patterns)) & MASK

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        frames: dict[str, Iterable[Frame]] = {}
        if self.by_name:
            rows = [(account.put, account.version) for account in self.by_name.values()]
            frames["accounts"] = map(AccountFrame, in_slices(rows))
        if self.white_list:
            frames["white-list"] = (WhiteListFrame(self.white_list),)
        return frames

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        self.changes += 1
        match frame:
            case AccountFrame(rows=rows):
                for put, version in rows:
                    self._put(Account(put, version))
            case WhiteListFrame(patterns=patterns):
                self._put_white_list(patterns)


ACCOUNTS: Final = TableKey(NAME, AccountTable)


def _hash(account: Account) -> int:
    return item_hash("account", *msgspec.structs.astuple(account.put), account.version)


def _hash_white_list(patterns: tuple[str, ...]) -> int:
    return item_hash("white-list", patterns) if patterns else 0
