"""Delayed messages while leaders are killed one after the other: none is lost, early or delivered twice."""

from __future__ import annotations

from random import Random

from tests.broker.features.delay.delayed_brokers import Delayed

KILLS = 50
DELAYS_MS = (1, 400, 1_100, 2_500, 6_000)


def test_fifty_leaders_that_are_killed_lose_nothing_and_deliver_everything_once_and_in_time() -> None:
    """`Truth` judges each record: none in its topic before it is due, none there twice."""
    delayed = Delayed()
    brokers, random = delayed.brokers, Random(29)
    operations: list[int] = []
    leaders: list[str] = []
    for _ in range(KILLS):
        operations += [delayed.send(random.choice(DELAYS_MS)) for _ in range(3)]
        brokers.run(random.uniform(0.0, 0.8))
        leaders.append(brokers.leader)
        brokers.group.kill(leaders[-1])
        while brokers.group.leader is None or brokers.leader == leaders[-1]:
            brokers.run(0.05)
        brokers.run(random.uniform(0.0, 1.0))
        brokers.group.start(leaders[-1])
        brokers.run(0.5)
    brokers.run(8.0)
    assert [operation for operation in operations if not delayed.is_delivered(operation)] == []
    assert delayed.truth.happened["delayed message delivered"] == len(operations)
    assert [table.total.rows for table in delayed.tables()] == [0, 0, 0]
    assert len(set(leaders)) > 1
