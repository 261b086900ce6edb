"""Service on top of a simulated group: what every node runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dledger.statemachine import StateMachine


class Service(Protocol):
    """What one life of a node runs on its replica."""

    @property
    def machine(self) -> StateMachine:
        """The state machine; exists before the replica."""

    def start(self) -> None:
        """The replica exists and is about to take part."""

    def leave(self) -> None:
        """The node is about to stop: clients are to go elsewhere, and what waits is answered."""

    def stop(self, done: Callable[[], None]) -> None:
        """Orderly: get ready for the replica's end, then call `done`."""

    def trim(self, position: int) -> None:
        """Leader: have every replica drop what lies before a snapshot's position."""
