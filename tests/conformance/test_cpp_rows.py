"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) passes the rows about retries, dead letters, order and delay."""

from __future__ import annotations

from functools import partial

import pytest
import rows

row = rows.row_fixture("cpp", asks_once=True)
ROWS = {
    "failed messages come again": rows.failed_messages_come_again,
    # One message: when a pulled batch has a failed message, this client sends the whole batch back.
    "hopeless messages become dead letters": partial(rows.hopeless_messages_become_dead_letters, messages=1),
    "queues are consumed in order": rows.queues_are_consumed_in_order,
    "delayed messages come when they are due": rows.delayed_messages_come_when_they_are_due,
}


@pytest.mark.parametrize("passes", ROWS.values(), ids=ROWS)
def test_the_client_passes_a_row(row, passes):
    passes(row)
