"""Apache RocketMQ's own clients, unmodified, come through rows on retries, dead letters, order, delay and transactions.

`make test-clients` runs this; it needs a JDK and Maven, and takes minutes, so that `make test` leaves it out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

import pop_rows
import pytest
import rows
from rows import Row
from stock_clients import GO_CLIENT, JAVA_CLIENTS
from wiretap import Wiretap

pytestmark = pytest.mark.parametrize("row", [False, True], ids=["undisturbed", "leader killed"], indirect=True)
WAYS: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "DELAY": lambda: {"level": 2},
    "TIMER_DELAY_SEC": lambda: {"properties": {"TIMER_DELAY_SEC": "2"}},
    "TIMER_DELAY_MS": lambda: {"properties": {"TIMER_DELAY_MS": "1500"}},
    "TIMER_DELIVER_MS": lambda: {"properties": {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 2000)}},
}
_NUMBERS = count()


@pytest.fixture
def row(quick_group, apache, request) -> Iterator[Row]:
    with Wiretap(quick_group) as tap:
        yield Row(quick_group, tap, apache, f"ApacheRow{next(_NUMBERS)}", kills=request.param)


def test_failed_messages_come_again(row):
    rows.failed_messages_come_again(row)


def test_hopeless_messages_become_dead_letters(row):
    rows.hopeless_messages_become_dead_letters(row)


def test_queues_are_consumed_in_order(row, request):
    # After its listener has suspended a queue, Go's goes on with the next message that is pulled, not by itself.
    suspends = request.node.callspec.params["program"] != GO_CLIENT
    rows.queues_are_consumed_in_order(row, suspends=suspends)


def test_delayed_messages_come_when_they_are_due(row):
    rows.delayed_messages_come_when_they_are_due(row, WAYS)


def test_transactions_end_once(row):
    rows.transactions_end_once(row)


def test_failed_messages_are_popped_again(row, request):
    skip_unless_brokers_may_assign(request)
    pop_rows.failed_messages_are_popped_again(row)


def test_an_expression_in_sql_filters_what_is_pulled(row):
    pop_rows.an_expression_in_sql_filters(row, is_popped=False)


def test_an_expression_in_sql_filters_what_is_popped(row, request):
    skip_unless_brokers_may_assign(request)
    pop_rows.an_expression_in_sql_filters(row, is_popped=True)


def test_assigned_queues_are_pulled(row, request):
    skip_unless_brokers_may_assign(request)
    pop_rows.assigned_queues_are_pulled(row)


def skip_unless_brokers_may_assign(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["program"] != JAVA_CLIENTS[0]:
        pytest.skip("this client shares queues by itself, and pops nothing")
