"""Changes of accounts that this leader proposes, one at a time for each account."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.overlay import ChangesInFlight
from dledger_remoting.errors import RemotingError

Done: TypeAlias = Callable[[Exception | None], None]


class AccountProposals:
    """Every `done` is called exactly once, with what `make` raised, too."""

    def __init__(self, machine: BrokerMachine) -> None:
        self._changes = ChangesInFlight(machine.overlay)

    def change(self, name: str, make: Callable[[], Command], done: Done) -> None:
        """Propose what `make` makes of the account as it stands once earlier changes of it are applied."""
        if self._changes.wait(name, lambda _: self.change(name, make, done)):
            return
        try:
            command = make()
        except RemotingError as error:
            done(error)
            return
        self._changes.propose(name, command, done)
