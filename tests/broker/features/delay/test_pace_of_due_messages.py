"""Pace of messages that are due and of those that are moved: how many units at a time, and beside whom."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from dledger_broker.features.delay import sweep
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.sweep import MAX_IN_FLIGHT
from dledger_sim.brokers.schedules.brokers import TOPIC
from tests.broker.features.delay.delayed_brokers import Delayed

PADDING = 4000


def overdue(count: int, delay_ms: int = 4_000) -> tuple[Delayed, list[int]]:
    """So many large messages wait, which are due at about the same time; followers write slowly from now on."""
    delayed = Delayed()
    brokers = delayed.brokers
    due = brokers.scheduler.now + delay_ms / 1000
    operations = [
        delayed.send(int((due - brokers.scheduler.now) * 1000) + number, padding=PADDING, settle_s=0.05)
        for number in range(count)
    ]
    for name in brokers.group.nodes:
        if name != brokers.leader:
            brokers.slow_down_disk(name, 0.06)
    return delayed, operations


def test_one_unit_of_due_messages_is_on_its_way_at_a_time() -> None:
    delayed, operations = overdue(24)
    seen = set()
    for _ in range(600):
        delayed.brokers.run(0.01)
        seen.add(delayed.in_flight.fires)
    assert seen == {0, 1}
    assert all(map(delayed.is_delivered, operations))


def test_while_sends_wait_for_the_log_due_messages_are_a_quarter_of_it_at_most() -> None:
    delayed, operations = overdue(24)
    brokers = delayed.brokers
    connection = brokers.connect(brokers.leader)
    while not all(map(delayed.is_delivered, operations)):
        brokers.send(connection, TOPIC, padding=1000)
        brokers.run(0.02)
    stored = delayed.truth.stored
    fired = sorted(stored[operation].position for operation in operations)
    assert (fired[-1] - fired[0]) / 4 >= PADDING * (len(operations) - 8)
    brokers.run(1.0)


def test_without_sends_due_messages_have_the_whole_log() -> None:
    delayed, operations = overdue(24)
    delayed.brokers.run(8.0)
    stored = delayed.truth.stored
    fired = sorted(stored[operation].position for operation in operations)
    assert (fired[-1] - fired[0]) / 2 < PADDING * len(operations)


def test_several_units_of_moved_messages_are_on_their_way_each_of_other_rows() -> None:
    """`Truth` sees each row moved once."""
    delayed, operations = overdue(40, 60_000)
    delayed.fill_log(20)
    seen = set()
    delayed.leader.trim(delayed.newest_snapshot)
    for _ in range(300):
        delayed.brokers.run(0.01)
        seen.add(delayed.in_flight.moves)
    assert max(seen) == MAX_IN_FLIGHT > 1
    assert delayed.truth.happened["row moved"] > 20
    delayed.brokers.run(60.0)
    assert all(map(delayed.is_delivered, operations))


def test_a_unit_of_moves_has_so_many_messages_however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them keeps the event loop for a while, whatever its size."""
    units: list[int] = []
    move = RowsInFlight.move

    def counted(in_flight: RowsInFlight, positions: Collection[int]) -> None:
        units.append(len(positions))
        move(in_flight, positions)

    monkeypatch.setattr(sweep, "MAX_UNIT_ROWS", 2)
    monkeypatch.setattr(RowsInFlight, "move", counted)
    delayed = Delayed()
    operations = [delayed.send(20_000, settle_s=0.05) for _ in range(5)]
    delayed.fill_log()
    delayed.leader.trim(delayed.newest_snapshot)
    delayed.brokers.run(3.0)
    assert units == [2, 2, 1]
    delayed.brokers.run(20.0)
    assert all(map(delayed.is_delivered, operations))
