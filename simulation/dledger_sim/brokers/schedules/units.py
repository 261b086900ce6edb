"""Schedules of the broker's own units, with records and commands, that meet a change of leader or a deletion."""

from __future__ import annotations

from typing import Final, cast

from dledger_broker.features.groups.table import GROUPS, PutGroup
from dledger_broker.kernel.units import NewRecord, Place, Stored, UnitOutcome, Unknown
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.codes import RequestCode
from dledger_remoting.topics import SubscriptionGroupConfig
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.registers import leading

PASSING: Final = "passing"


class Unit:
    """Unit that was written: messages to `topics`, and a consumer group of its name."""

    def __init__(self, brokers: Brokers, writer: LogWriter, name: str, *topics: str) -> None:
        self.name = name
        self.operations = [brokers.workload.next_operation() for _ in topics]
        self._told: list[UnitOutcome] = []
        records = [
            NewRecord(topic=topic, queue_id=0, body=encode_body(operation, 0), born_ms=0, born_host=bytes(8))
            for topic, operation in zip(topics, self.operations, strict=True)
        ]
        writer.write(records, [PutGroup(SubscriptionGroupConfig(name))], done=self._told.append)
        assert not self._told, "nothing is told inside `write`"

    @property
    def outcome(self) -> UnitOutcome:
        """Outcome, which was reported once."""
        (outcome,) = self._told
        return outcome

    @property
    def places(self) -> tuple[Place | None, ...]:
        """Places of its messages."""
        assert isinstance(self.outcome, Stored)
        return self.outcome.places

    def is_in(self, broker: SimBroker, brokers: Brokers) -> bool:
        """Return whether a node has the unit. The node must have all of it or nothing."""
        has_group = self.name in broker.broker.state.table(GROUPS).by_name
        assert {operation in brokers.workload.truth.stored for operation in self.operations} == {has_group}
        return has_group


def leading_broker(brokers: Brokers) -> SimBroker:
    """Return the broker of the leader."""
    return cast(SimBroker, leading(brokers.group).service)


def unit_of_a_leader_that_is_cut_off() -> None:
    """Check that a unit without a majority has an unknown outcome, and that the next leader reuses its queue offsets.

    1. The leader is cut off, still believes that it leads, and writes a unit.
    2. Another node leads, and writes a unit to the same queue.
    3. The old leader hears of the second unit.

    Seeds of `broker` have no such units: no client there delays messages, sends them back, pops or ends transactions.
    """
    brokers = Brokers()
    network, old = brokers.group.network, leading_broker(brokers)
    first = Unit(brokers, old.service.writer, "first", TOPIC, TOPIC)
    brokers.run(1.0)
    assert [place.queue_offset for place in first.places if place] == [0, 1]
    links = [(a, b) for a in brokers.group.nodes for b in brokers.group.nodes if a != b and brokers.leader in {a, b}]
    for link in links:
        network.block(*link)
    lost = Unit(brokers, old.service.writer, "lost", TOPIC)
    brokers.run(3.0)
    new = leading_broker(brokers)
    assert new is not old
    second = Unit(brokers, new.service.writer, "second", TOPIC)
    brokers.run(0.5)
    for link in links:
        network.unblock(*link)
    brokers.run(4.0)
    assert lost.outcome == Unknown()
    assert [place.queue_offset for place in second.places if place] == [2]
    for broker in (old, new):
        assert first.is_in(broker, brokers)
        assert second.is_in(broker, brokers)
        assert not lost.is_in(broker, brokers)


def unit_that_the_next_leader_commits() -> None:
    """Check that a unit of unknown outcome is stored as a whole, and that its queue offsets are given once.

    1. The leader receives no messages any more, and only a single follower receives its messages. That follower has the
      unit, which has no majority.
    2. The leader gives up. The follower is elected, commits the unit, and writes another.
    """
    brokers = Brokers()
    network, old, leader, heir = brokers.group.network, leading_broker(brokers), brokers.leader, brokers.follower
    (other,) = set(brokers.group.nodes) - {leader, heir}
    for link in ((heir, leader), (other, leader), (leader, other)):
        network.block(*link)
    unit = Unit(brokers, old.service.writer, "unit", TOPIC, TOPIC)
    brokers.run(3.0)
    assert brokers.leader == heir
    assert unit.outcome == Unknown()
    network.heal()
    after = Unit(brokers, leading_broker(brokers).service.writer, "after", TOPIC)
    brokers.run(4.0)
    assert [place.queue_offset for place in after.places if place] == [2]
    assert all(unit.is_in(broker, brokers) for broker in (old, leading_broker(brokers)))


def unit_in_the_turn_of_a_deletion() -> None:
    """Check that no record is written behind a deletion of its topic that is on its way.

    The remaining part of the unit is written.

    Seeds of `broker` have no such units: no client there delays messages, sends them back, pops or ends transactions.
    """
    brokers = Brokers()
    broker, connection = leading_broker(brokers), brokers.connect(brokers.leader)
    brokers.ask(connection, RequestCode.UPDATE_AND_CREATE_TOPIC, brokers.workload.topic_fields(PASSING))
    brokers.run(1.0)
    broker.broker.proposals.delete_topic(PASSING, lambda _: None)
    unit = Unit(brokers, broker.service.writer, "unit", PASSING, TOPIC)
    brokers.run(1.0)
    left_out, kept = unit.places
    assert left_out is None
    assert kept is not None
    assert PASSING not in brokers.workload.truth.topics


UNIT_SCHEDULES: Final = (
    unit_of_a_leader_that_is_cut_off,
    unit_that_the_next_leader_commits,
    unit_in_the_turn_of_a_deletion,
)
