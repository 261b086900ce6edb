"""Table of accounts: who there is, what each may do, and which addresses need no signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

NAME: Final = "accounts"
"""Name of the feature, which is never another one: it is recorded when it is activated."""


class Rule(NamedTuple):
    """Whether an account may do something. `resource` is `Topic:name`, `Group:name*`, `Cluster:*` or `*`; `sources` are
    addresses or networks from which it counts, none for all.
    """

    resource: str
    actions: tuple[str, ...]
    sources: tuple[str, ...] = ()
    allow: bool = True


class PutAccount(msgspec.Struct, frozen=True):
    """Make an account, or change it. `sealed` is its secret, see `sealing`; `white_list` the addresses from which its
    name alone will do. Of its rules `default` count where none in `custom` says anything.
    """

    name: str
    sealed: str
    admin: bool = False
    enabled: bool = True
    white_list: tuple[str, ...] = ()
    custom: tuple[Rule, ...] = ()
    default: tuple[Rule, ...] = ()


class DeleteAccount(msgspec.Struct, frozen=True):
    """Delete an account with its rules."""

    name: str


class PutWhiteList(msgspec.Struct, frozen=True):
    """All addresses from which no account need be named."""

    patterns: tuple[str, ...] = ()


ACCOUNT_COMMANDS: Final[Kinds] = {60: PutAccount, 61: DeleteAccount, 62: PutWhiteList}


class AccountFrame(msgspec.Struct, frozen=True, tag="accounts"):
    """Accounts, each with the index of the entry that put it."""

    rows: list[tuple[PutAccount, int]]


class WhiteListFrame(msgspec.Struct, frozen=True, tag="white-list"):
    """Addresses from which no account need be named."""

    patterns: tuple[str, ...]


class Account(NamedTuple):
    """An account as `put` has it, since the entry `version`."""

    put: PutAccount
    version: int


class AccountTable(Table):
    """All accounts by their names. `changes` counts what this replica has applied to it."""

    __slots__ = ("_accounts", "changes", "digest", "white_list")

    digest: int

    frames = (AccountFrame, WhiteListFrame)

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self.white_list: tuple[str, ...] = ()
        self.digest = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._accounts)

    def get(self, name: str) -> Account | None:
        """An account."""
        return self._accounts.get(name)

    def names(self) -> list[str]:
        """The names of all accounts, in their order."""
        return sorted(self._accounts)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
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
        self._accounts[account.put.name] = account
        self.digest = (self.digest + _hash(account)) & MASK

    def _remove(self, name: str) -> None:
        account = self._accounts.pop(name, None)
        if account is not None:
            self.digest = (self.digest - _hash(account)) & MASK

    def _put_white_list(self, patterns: tuple[str, ...]) -> None:
        old = _hash_white_list(self.white_list)
        self.white_list = patterns
        self.digest = (self.digest - old + _hash_white_list(patterns)) & MASK

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        _ = now
        frames: dict[str, Iterable[Frame]] = {}
        if self._accounts:
            rows = [(account.put, account.version) for account in self._accounts.values()]
            frames["accounts"] = map(AccountFrame, in_slices(rows))
        if self.white_list:
            frames["white-list"] = (WhiteListFrame(self.white_list),)
        return frames

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
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
