"""The unmodified npm client `ali-ons` 3.12.0 passes the rows about retries, dead letters and delay.

The rows use two broker groups, as this client never repeats a send within one. It has neither ordered consumers nor
transactions. For order it only sends the messages of a sharding key to queues of the same number.
"""

from __future__ import annotations

import time
from functools import partial

import pytest
import rows
from cluster_checks import bodies_of, create_topic

row = rows.row_fixture("ali_ons", groups="quick_groups")
WAYS = {"DELAY": rows.WAYS["DELAY"], "__STARTDELIVERTIME": lambda: {"deliver_ms": time.time_ns() // 1_000_000 + 2000}}
SHARD_OF_ANOTHER_QUEUE = 2
ROWS = {
    "failed messages come again": rows.failed_messages_come_again,
    "hopeless messages become dead letters": rows.hopeless_messages_become_dead_letters,
    "delayed messages come when they are due": partial(rows.delayed_messages_come_when_they_are_due, ways=WAYS),
}


@pytest.mark.parametrize("passes", ROWS.values(), ids=ROWS)
def test_the_client_passes_a_row(row, passes):
    passes(row)


def test_messages_of_a_shard_are_stored_in_order_under_one_queue_number(row):
    """The client alternates between the broker groups, and takes queue 0 for "no queue chosen"."""
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        bodies = [str(number) for number in range(10)]
        for body in row.around_the_kill(bodies):
            rows.send(client, topic=row.topic, body=body, shard=SHARD_OF_ANOTHER_QUEUE)
        rows.assert_stored_as_often_as_sent(row)
        stored = row.stored()
        assert {*bodies_of(stored)} == {*bodies}
        queues = {message.queue for message in stored}
        assert len({queue.queue_id for queue in queues}) == 1
        for queue in queues:
            copies = bodies_of(message for message in stored if message.queue == queue)
            assert [*dict.fromkeys(copies)] == sorted({*copies}, key=int), f"first copies in {queue}"
