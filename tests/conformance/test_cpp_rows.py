"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) comes through rows on retries, dead letters, order and delay."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Final

import pytest
import rows
from rows import Row
from wiretap import Wiretap

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("row", [False, True], ids=["undisturbed", "leader killed"], indirect=True),
]
WAYS: Final[Mapping[str, Callable[[], Mapping[str, object]]]] = {
    "DELAY": lambda: {"level": 2},
    "TIMER_DELAY_SEC": lambda: {"properties": {"TIMER_DELAY_SEC": "2"}},
    "TIMER_DELAY_MS": lambda: {"properties": {"TIMER_DELAY_MS": "1500"}},
    "TIMER_DELIVER_MS": lambda: {"properties": {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 2000)}},
}
_NUMBERS = count()


@pytest.fixture
def row(quick_group, cpp, request) -> Iterator[Row]:
    with Wiretap(quick_group) as tap:
        yield Row(quick_group, tap, cpp, f"CppRow{next(_NUMBERS)}", kills=request.param, asks_once=True)


def test_failed_messages_come_again(row):
    rows.failed_messages_come_again(row)


def test_hopeless_messages_become_dead_letters(row):
    # One: of several that are pulled at once, this client sends all back for the first that fails.
    rows.hopeless_messages_become_dead_letters(row, messages=1)


def test_queues_are_consumed_in_order(row):
    rows.queues_are_consumed_in_order(row)


def test_delayed_messages_come_when_they_are_due(row):
    rows.delayed_messages_come_when_they_are_due(row, WAYS)
