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

from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.accounts.table import ACCOUNTS, PutAccount
from dledger_broker.features.speakers.table import (
    NAME,
    SPEAKER_COMMANDS,
    SPEAKERS,
    PutSpeaker,
    has_speaking_rules,
)
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Context, Feature, Gauge, Part


class Speakers(Part):
    """Part that has accounts with the right stored by their own command, and counts them."""

    def __init__(self, machine: BrokerMachine) -> None:
        self._machine = machine

    def command_of(self, account: PutAccount) -> Command:
        """Return the command that puts an account. Raises `SystemBusy` while a node does not understand its rules."""
        if not has_speaking_rules(account):
            return account
        self._machine.activation.require(NAME)
        return PutSpeaker(account)

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (Gauge("speaking_accounts", "Accounts with rules about speaking for others", self._count),)

    def _count(self) -> int:
        return sum(map(has_speaking_rules, self._accounts()))

    def _accounts(self) -> Iterable[PutAccount]:
        table = self._machine.state.table(ACCOUNTS)
        found = (table.get(name) for name in table.names())
        return (account.put for account in found if account is not None)


def _build(context: Context) -> Speakers:
    speakers = Speakers(context.machine)
    context.parts[AccountRequests].changes.command_of = speakers.command_of
    return speakers


FEATURE: Final = Feature(name=NAME, commands=SPEAKER_COMMANDS, table=SPEAKERS, activated=True, build=_build)
