"""The unmodified npm client `ali-ons` 3.12.0 comes through rows on retries, dead letters and delay.

Two broker groups, as it never tries a send again within one. It has neither ordered consumers nor transactions; for
order it does no more than to send what has one sharding key to queues of one number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

import pytest
import rows
from cluster_checks import bodies_of, create_topic
from rows import Row
from wiretap import Wiretap

pytestmark = pytest.mark.slow
WITH_AND_WITHOUT_A_KILL = pytest.mark.parametrize(
    "row", [False, True], ids=["undisturbed", "leader killed"], indirect=True
)
WAYS: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "DELAY": lambda: {"level": 2},
    "__STARTDELIVERTIME": lambda: {"deliver_ms": time.time_ns() // 1_000_000 + 2000},
}
SHARD_OF_ANOTHER_QUEUE: Final = 2
_NUMBERS = count()


@pytest.fixture
def row(quick_groups, ali_ons, request) -> Iterator[Row]:
    with Wiretap(quick_groups) as tap:
        yield Row(quick_groups, tap, ali_ons, f"AliRow{next(_NUMBERS)}", kills=request.param)


@WITH_AND_WITHOUT_A_KILL
def test_failed_messages_come_again(row):
    rows.failed_messages_come_again(row)


@WITH_AND_WITHOUT_A_KILL
def test_hopeless_messages_become_dead_letters(row):
    rows.hopeless_messages_become_dead_letters(row)


@WITH_AND_WITHOUT_A_KILL
def test_delayed_messages_come_when_they_are_due(row):
    rows.delayed_messages_come_when_they_are_due(row, WAYS)


@WITH_AND_WITHOUT_A_KILL
def test_messages_of_one_shard_lie_in_queues_of_one_number_in_order(row):
    """It takes one broker group after the other, and of queue 0 it thinks that none is chosen."""
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        bodies = [str(number) for number in range(10)]
        for position, body in enumerate(bodies):
            if position == len(bodies) // 2:
                row.kill()
            rows.send(client, topic=row.topic, body=body, shard=SHARD_OF_ANOTHER_QUEUE)
        rows.assert_stored_as_often_as_sent(row)
        stored = row.stored()
        assert {*bodies_of(stored)} == {*bodies}
        queues = {message.queue for message in stored}
        assert len({queue.queue_id for queue in queues}) == 1
        for queue in queues:
            copies = bodies_of(message for message in stored if message.queue == queue)
            assert [*dict.fromkeys(copies)] == sorted({*copies}, key=int), f"first copies in {queue}"
