"""Bugs of the writer of the broker's own units."""

from __future__ import annotations

from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.writer import WrittenUnit
from dledger_sim.brokers.schedules import units
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")

CATALOGUE.add(
    "unit-for-deleted-topic",
    "no record is written for a topic whose deletion is in flight",
    (BrokerMachine, "topic", lambda self, name: self.state.topics.get(name)),
    schedule=units.unit_in_the_turn_of_a_deletion,
)

CATALOGUE.add(
    "lost-unit-stored",
    "a unit that was proposed and lost sight of has an unknown outcome",
    (WrittenUnit, "dropped", lambda self, _full: self.applied()),
    schedule=units.unit_of_a_leader_that_is_cut_off,
)
