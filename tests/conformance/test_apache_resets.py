"""Groups of Apache RocketMQ's Java client 5.3.3, unmodified, go on where our command and mqadmin tell them to.

`make test-clients` runs this; it needs a JDK and Maven.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
import reset_rows
from reset_rows import by_command, by_mqadmin
from rows import Row
from stock_clients import JAVA_CLIENTS
from wiretap import Wiretap

pytestmark = [
    pytest.mark.parametrize("program", JAVA_CLIENTS[:1], indirect=True),
    pytest.mark.parametrize("row", [False, True], ids=["undisturbed", "leader killed"], indirect=True),
    pytest.mark.parametrize("reset", [by_command, by_mqadmin]),
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
