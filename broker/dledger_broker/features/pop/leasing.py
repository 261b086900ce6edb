"""Leases as pops ask for them. The feature `leases` gives them, and `confirmations` lets them begin later."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.pop.commands import Pop
from dledger_broker.features.pop.revival import HiddenByLease
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.requests import Request
from dledger_remoting.headers_pop import PopHeader

UNCONFIRMED_MS: Final = 30_000
"""Maximum invisible time in ms of messages whose lease begins only with a confirmation.

A change of the leader takes a few seconds, and proxies try to confirm until then. If an answer is lost, its messages
are delayed this long.
"""


class Leasing:
    """Giver of leases, under which popped messages stay hidden while their client lives."""

    times: HiddenByLease
    """The times for which leases hide messages."""

    def owner_of(self, request: Request, header: PopHeader) -> str:
        """Return the owner of the lease that a pop asks for, or "" if it asks for none. Raises `RemotingError`."""
        raise NotImplementedError

    def awaits_confirmation(self, request: Request) -> bool:
        """Return whether the lease of a pop is to begin later, by a confirmation."""
        raise NotImplementedError

    def leased(self, pop: Pop, owner: str) -> Command:
        """Return the command of a pop under a lease."""
        raise NotImplementedError
