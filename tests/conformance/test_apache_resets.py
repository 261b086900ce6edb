"""Groups of Apache RocketMQ's own clients, unmodified, obey resets by our command and by mqadmin."""

from __future__ import annotations

import pytest
from reset_rows import (
    a_group_that_is_away_comes_back_where_it_was_told,
    a_live_group_goes_on_where_it_is_told,
    by_command,
    by_mqadmin,
)
from rows import row_fixture
from stock_clients import GO_CLIENT, JAVA_CLIENTS

pytestmark = pytest.mark.usefixtures("program")  # the row starts it
row = row_fixture("apache")
RESETS = [
    (JAVA_CLIENTS[0], by_command),
    (JAVA_CLIENTS[0], by_mqadmin),
    (JAVA_CLIENTS[1], by_mqadmin),
    (GO_CLIENT, by_mqadmin),
]


@pytest.mark.parametrize(("program", "reset"), RESETS, indirect=["program"])
@pytest.mark.parametrize(
    "passes", [a_live_group_goes_on_where_it_is_told, a_group_that_is_away_comes_back_where_it_was_told]
)
def test_a_group_continues_at_the_reset_offset(row, passes, reset):
    passes(row, reset)
