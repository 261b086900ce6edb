"""Services on top of a simulated group: the one that every node runs, and the clients of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import TYPE_CHECKING, Protocol

from dledger.statemachine import StateMachine

if TYPE_CHECKING:
    from dledger.sim.cases import Limits
    from dledger.sim.group import Life, SimGroup
    from dledger.sim.plan import Plan


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


class Trial(Protocol):
    """One seed's clients, and what they know."""

    def serve(self, group: SimGroup, life: Life) -> Service:
        """The service of a new life of a node."""

    def start(self, group: SimGroup) -> None:
        """Let the clients begin; the nodes have run for a moment."""

    def stop(self) -> None:
        """No operation begins any more."""

    def judge(self, group: SimGroup) -> None:
        """The group is healed and whole: raise `Violation` unless everything promised is there."""

    @property
    def counts(self) -> Counter[str]:
        """Operations by outcome (`ok`, `fail`, `info`), and rare things that happened."""


class Scenario(Protocol):
    """A kind of service with its clients."""

    @property
    def name(self) -> str:
        """What the command line calls it."""

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        """A seed's group and faults; `kinds` are those to draw from, by default all."""

    def draw(self, random: Random, limits: Limits) -> Trial:
        """A seed's clients."""
