"""Groups of Apache RocketMQ's own clients, unmodified, go on where our command and mqadmin tell them to.

`make test-clients` runs this; it needs a JDK and Maven.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import reset_rows
from reset_rows import by_command, by_mqadmin
from rows import Row
from stock_clients import GO_CLIENT, JAVA_CLIENTS
from wiretap import Wiretap

pytestmark = [
    pytest.mark.parametrize("row", [False, True], ids=["undisturbed", "leader killed"], indirect=True),
    pytest.mark.parametrize(
        ("program", "reset"),
        [
            (JAVA_CLIENTS[0], by_command),
            (JAVA_CLIENTS[0], by_mqadmin),
            (JAVA_CLIENTS[1], by_mqadmin),
            (GO_CLIENT, by_mqadmin),
        ],
        indirect=["program"],
    ),
]
_NUMBERS = count()


@pytest.fixture
def row(quick_group, apache, request) -> Iterator[Row]:
    with Wiretap(quick_group) as tap:
        yield Row(quick_group, tap, apache, f"ApacheReset{next(_NUMBERS)}", kills=request.param)


def test_a_live_group_goes_on_where_it_is_told(row, reset):
    reset_rows.a_live_group_goes_on_where_it_is_told(row, reset)


def test_a_group_that_is_away_comes_back_where_it_was_told(row, reset):
    reset_rows.a_group_that_is_away_comes_back_where_it_was_told(row, reset)
