"""Table of accounts that may speak for others: the command that puts them into the table of accounts."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable, PutAccount
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.tables import Changes, FindTable, Table, TableKey

NAME: Final = "speakers"
"""Name of the feature. It must never change, because the log records it when the feature is activated."""


class PutSpeaker(msgspec.Struct, frozen=True):
    """Command that makes or replaces an account with rules about the right to speak for others."""

    account: PutAccount


SPEAKER_COMMANDS: Final[Kinds] = {71: PutSpeaker}


def has_speaking_rules(account: PutAccount) -> bool:
    """Return whether rules of an account name the right to speak for others, which earlier versions do not know."""
    return any(Action.SPEAK in rule.actions for rule in (*account.custom, *account.default))


class SpeakerTable(Table):
    """Table without content of its own: it puts the accounts of its command into the table of accounts."""

    __slots__ = ("_accounts",)

    digest: Final = 0

    def meet(self, find: FindTable) -> None:
        self._accounts: AccountTable = find.table(ACCOUNTS)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        match command:
            case PutSpeaker(account=account):
                self._accounts.apply(account, entry, changes)


SPEAKERS: Final = TableKey(NAME, SpeakerTable)
