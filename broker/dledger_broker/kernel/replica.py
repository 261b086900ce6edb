"""View of a replica as its parts see it: the applied state, and the log."""

from __future__ import annotations

from typing import Protocol

from dledger.log import Log
from dledger_broker.kernel.state import BrokerState


class Replica(Protocol):
    """The state and log that proposals are decided on, and that lookups answer from."""

    @property
    def state(self) -> BrokerState:
        """The present applied state. It is another object after a snapshot was installed."""

    @property
    def applied_position(self) -> int:
        """The position behind the last applied entry."""

    @property
    def log(self) -> Log:
        """The log, which takes proposals."""
