"""Delayed messages and trims: the log goes only where nothing waits; what waits is moved first."""

from __future__ import annotations

from dledger_sim.log.registers import leading
from tests.broker.features.delay.delayed_brokers import Delayed


def trim(delayed: Delayed) -> int:
    """Ask for the highest trim that is possible; returns where."""
    replica = leading(delayed.brokers.group).replica
    position = replica.snapshots.list()[-1].position
    assert position > 0
    delayed.leader.trim(position)
    return position


def test_what_waits_is_moved_before_the_log_is_trimmed_and_delivered_once() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    operations = [delayed.send(30_000) for _ in range(3)]
    delayed.fill_log()
    position = trim(delayed)
    assert leading(brokers.group).replica.store.first_position < position
    brokers.run(3.0)
    assert delayed.truth.happened["row moved"] == 3
    assert [table.below(position).rows for table in delayed.tables()] == [0, 0, 0]
    delayed.leader.trim(position)
    brokers.run(1.0)
    assert leading(brokers.group).replica.store.first_position >= position
    assert not any(map(delayed.is_delivered, operations))
    brokers.run(30.0)
    assert all(map(delayed.is_delivered, operations))
    assert delayed.truth.happened["delayed message delivered"] == 3


def test_a_leader_that_follows_goes_on_with_moves() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    operation = delayed.send(40_000)
    delayed.fill_log()
    trim(delayed)
    brokers.group.kill(brokers.leader)
    brokers.run(3.0)
    position = trim(delayed)
    brokers.run(3.0)
    assert [table.below(position).rows for table in delayed.tables()] == [0, 0]
    brokers.run(40.0)
    assert delayed.is_delivered(operation)


def test_what_cannot_be_moved_because_the_log_is_full_is_given_up_and_counted() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    low = delayed.send(60_000)
    delayed.fill_log()
    kept = delayed.send(60_000)
    position = leading(brokers.group).replica.snapshots.list()[-1].position
    delayed.leader.trim(position)
    brokers.fill_disk_for(2.0, reserve_too=False)
    brokers.run(2.0)
    assert delayed.truth.due.lost == {low}
    assert [table.below(position).rows for table in delayed.tables()] == [0, 0, 0]
    delayed.leader.trim(position)
    brokers.run(1.0)
    assert leading(brokers.group).replica.store.first_position >= position
    brokers.run(60.0)
    assert (delayed.is_delivered(low), delayed.is_delivered(kept)) == (False, True)
    (gauge,) = (gauge for gauge in delayed.due_messages.gauges if gauge.name == "timers_lost")
    assert gauge.read() == 1
