"""Apache RocketMQ's own clients, unmodified, pass the rows about retries, dead letters, order and transactions."""

from __future__ import annotations

from functools import partial

import pop_rows
import pytest
import rows
from stock_clients import GO_CLIENT, JAVA_CLIENTS

pytestmark = pytest.mark.usefixtures("program")  # the row starts it
row = rows.row_fixture("apache")
ROWS = {
    "failed messages come again": rows.failed_messages_come_again,
    "hopeless messages become dead letters": rows.hopeless_messages_become_dead_letters,
    "delayed messages come when they are due": rows.delayed_messages_come_when_they_are_due,
    "transactions end once": rows.transactions_end_once,
    "an expression in sql filters what is pulled": partial(pop_rows.an_expression_in_sql_filters, is_popped=False),
}
ASSIGNED = {
    "failed messages are popped again": pop_rows.failed_messages_are_popped_again,
    "an expression in sql filters what is popped": partial(pop_rows.an_expression_in_sql_filters, is_popped=True),
    "assigned queues are pulled": pop_rows.assigned_queues_are_pulled,
}
"""Rows of a client whose queues a broker may assign. The others share queues by themselves, and pop nothing."""


@pytest.mark.parametrize("passes", ROWS.values(), ids=ROWS)
def test_the_client_passes_a_row(row, passes):
    passes(row)


@pytest.mark.parametrize("program", JAVA_CLIENTS[:1], indirect=True)
@pytest.mark.parametrize("passes", ASSIGNED.values(), ids=ASSIGNED)
def test_the_client_passes_a_row_with_assigned_queues(row, passes):
    passes(row)


def test_queues_are_consumed_in_order(row, request):
    # After its listener has suspended a queue, Go's client continues only with the next message that it pulls.
    suspends = request.node.callspec.params["program"] != GO_CLIENT
    rows.queues_are_consumed_in_order(row, suspends=suspends)
