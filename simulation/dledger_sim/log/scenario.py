"""Scenario of a run: a kind of service, and one seed's clients of it."""

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
