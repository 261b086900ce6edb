"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) broadcasts, shares groups with ours, and goes where it is reset.

`make test-clients` runs this: it takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import mode_rows
import pytest
import reset_rows
import stories
from cluster_checks import create_topic
from rows import Row
from wiretap import Wiretap

pytestmark = pytest.mark.slow
WITH_AND_WITHOUT_A_KILL = pytest.mark.parametrize(
    "row", [False, True], ids=["undisturbed", "leader killed"], indirect=True
)
TAKEN_OVER_SECONDS = 120.0
_NUMBERS = count()


@pytest.fixture
def row(quick_group, cpp, request) -> Iterator[Row]:
    with Wiretap(quick_group) as tap:
        yield Row(quick_group, tap, cpp, f"CppMode{next(_NUMBERS)}", kills=request.param, asks_once=True)


@WITH_AND_WITHOUT_A_KILL
def test_every_member_of_a_broadcast_group_gets_everything(row):
    mode_rows.every_member_of_a_broadcast_group_gets_everything(row)


@WITH_AND_WITHOUT_A_KILL
def test_members_of_both_kinds_share_the_queues_of_a_group(row):
    mode_rows.members_of_both_kinds_share_the_queues_of_a_group(row)


@WITH_AND_WITHOUT_A_KILL
def test_a_live_group_goes_on_where_it_is_told(row):
    reset_rows.a_live_group_goes_on_where_it_is_told(row, reset_rows.by_mqadmin)


@WITH_AND_WITHOUT_A_KILL
def test_a_group_that_is_away_comes_back_where_it_was_told(row):
    reset_rows.a_group_that_is_away_comes_back_where_it_was_told(row, reset_rows.by_mqadmin)


def test_a_member_takes_over_what_one_leaves_that_is_killed(quick_group, cpp):
    topic = "CppTakenOver"
    create_topic(quick_group, topic)
    members = [cpp(quick_group.namesrv), cpp(quick_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, TAKEN_OVER_SECONDS, kills=True)
