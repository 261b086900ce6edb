"""Pace of messages that are due or moved: how many units are in flight, and what others get of the log meanwhile."""

from collections.abc import Collection

import pytest

from dledger_broker.features.delay import sweep
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.sweep import MAX_IN_FLIGHT
from dledger_sim.brokers.schedules.brokers import TOPIC
from tests.broker.features.delay.delayed_brokers import Delayed, trim

PADDING = 4000


def overdue(delayed: Delayed, count: int = 24, delay_ms: int = 4_000) -> list[int]:
    """Have large messages wait that are due at about the same time. Followers write slowly from now on."""
    due = delayed.brokers.scheduler.now + delay_ms / 1000
    operations = [
        delayed.send(int((due - delayed.brokers.scheduler.now) * 1000) + number, padding=PADDING, settle_s=0.05)
        for number in range(count)
    ]
    delayed.slow_followers(0.06)
    return operations


def span(delayed: Delayed, operations: list[int]) -> int:
    """Return how far apart in the log the first and the last of delivered messages are."""
    fired = [delayed.truth.stored[operation].position for operation in operations]
    return max(fired) - min(fired)


def test_one_unit_of_due_messages_is_in_flight_and_without_sends_they_have_the_whole_log(delayed: Delayed) -> None:
    operations, seen = overdue(delayed), set()
    for _ in range(600):
        delayed.run(0.01)
        seen.add(delayed.in_flight.fires)
    assert seen == {0, 1}
    assert delayed.delivered(*operations) == {True}
    assert span(delayed, operations) / 2 < PADDING * len(operations)


def test_while_sends_wait_due_messages_take_at_most_a_quarter_of_the_log(delayed: Delayed) -> None:
    operations = overdue(delayed)
    connection = delayed.brokers.connect(delayed.brokers.leader)
    while not all(map(delayed.is_delivered, operations)):
        delayed.brokers.send(connection, TOPIC, padding=1000)
        delayed.run(0.02)
    assert span(delayed, operations) / 4 >= PADDING * (len(operations) - 8)
    delayed.run(1.0)


def test_several_units_of_moves_with_different_rows_are_in_flight(delayed: Delayed) -> None:
    """`Truth` sees each row moved once."""
    operations, seen = overdue(delayed, 40, 60_000), set()
    delayed.fill_log(20)
    trim(delayed)
    for _ in range(300):
        delayed.run(0.01)
        seen.add(delayed.in_flight.moves)
    assert max(seen) == MAX_IN_FLIGHT > 1
    assert delayed.happened["row moved"] > 20
    delayed.run(60.0)
    assert delayed.delivered(*operations) == {True}


def test_a_unit_of_moves_has_a_limited_number_of_messages(delayed: Delayed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message occupies the event loop for a while, whatever its size."""
    units: list[int] = []
    move = RowsInFlight.move

    def counted(in_flight: RowsInFlight, positions: Collection[int]) -> None:
        units.append(len(positions))
        move(in_flight, positions)

    monkeypatch.setattr(sweep, "MAX_UNIT_ROWS", 2)
    monkeypatch.setattr(RowsInFlight, "move", counted)
    operations = [delayed.send(20_000, settle_s=0.05) for _ in range(5)]
    delayed.fill_log()
    trim(delayed)
    delayed.run(3.0)
    assert units == [2, 2, 1]
    delayed.run(20.0)
    assert delayed.delivered(*operations) == {True}
