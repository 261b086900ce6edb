"""View of a replica as its parts see it: the state that is applied, and the log that it comes from."""

from __future__ import annotations

from typing import Protocol

from dledger.log import Log
from dledger_broker.kernel.state import BrokerState


class Replica(Protocol):
    """What proposals are decided on, and lookups answer from."""

    @property
    def state(self) -> BrokerState:
        """The state as it is applied now; another object after a snapshot was installed."""

    @property
    def applied_position(self) -> int:
        """Behind the last entry that is applied."""

    @property
    def log(self) -> Log:
        """The log; it takes what is proposed."""
