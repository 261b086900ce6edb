"""Accounts that may speak for others: the command that makes them, which a group uses once all its nodes understand it.

An account with the right `Speak` is stored like any other. Its command has a kind of its own, because an earlier
version can neither read that right nor check what such an account passes on. Without the kind:

1. A group has nodes of two versions, and an administrator gives a proxy's account the right.
2. A node of the earlier version judges a request of the proxy by the proxy's own rights.
3. It cannot read the rules of that account, and answers its requests with an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.accounts.table import ACCOUNTS, AccountTable, PutAccount
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
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


class Speakers(Part):
    """Part that counts the accounts that may speak for others."""

    def __init__(self, machine: BrokerMachine) -> None:
        self._machine = machine

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("speaking_accounts", "Accounts with rules about speaking for others", self._count),)

    def _count(self) -> int:
        return sum(map(has_speaking_rules, self._accounts()))

    def _accounts(self) -> Iterable[PutAccount]:
        table = self._machine.state.table(ACCOUNTS)
        found = (table.get(name) for name in table.names())
        return (account.put for account in found if account is not None)
