"""Interface of the service that every node of a simulated group runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dledger.statemachine import StateMachine


class Service(Protocol):
    """Service of one life of a node, on its replica."""

    @property
    def machine(self) -> StateMachine:
        """State machine. It exists before the replica."""

    def start(self) -> None:
        """Begin. The replica exists and is about to take part."""

    def leave(self) -> None:
        """Prepare for a stop: send clients elsewhere, and answer waiting requests."""

    def stop(self, done: Callable[[], None]) -> None:
        """Stop in an orderly way before the replica ends, then call `done`."""

    def rot_rows(self, where: float, how: str) -> bool:
        """Damage a database of its views (see `HowViewsRot`). Return False without a database, or if it has no row."""

    def trim(self, position: int) -> None:
        """As leader, make every replica drop everything before a snapshot's position."""
