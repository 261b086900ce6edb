"""Interfaces of a scenario: a kind of service, and a seed's clients of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random
from typing import Protocol

from dledger_sim.log.cases import Limits
from dledger_sim.log.group import SimGroup
from dledger_sim.log.life import Life
from dledger_sim.log.plan import Plan
from dledger_sim.log.service import Service


class Trial(Protocol):
    """Clients of one seed, with everything that they know."""

    def serve(self, group: SimGroup, life: Life) -> Service:
        """Return the service of a new life of a node."""

    def start(self, group: SimGroup) -> None:
        """Start the clients. The nodes have run for a moment."""

    def stop(self) -> None:
        """Stop the clients: no operation begins any more."""

    def judge(self, group: SimGroup) -> None:
        """Raise `Violation` unless everything promised is there. The group is healed and whole."""

    @property
    def counts(self) -> Counter[str]:
        """Number of operations by outcome (`ok`, `fail`, `info`), and of rare things that happened."""


class Scenario(Protocol):
    """Kind of service with its clients."""

    @property
    def name(self) -> str:
        """Name on the command line."""

    def plan(self, random: Random, kinds: Collection[str] | None) -> Plan:
        """Draw a seed's group and faults. `kinds` are the kinds to draw from, by default all."""

    def draw(self, random: Random, limits: Limits) -> Trial:
        """Draw a seed's clients."""
