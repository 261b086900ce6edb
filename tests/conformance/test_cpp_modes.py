"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) broadcasts, shares groups with ours, goes where it is reset, and
knows trimmed queues and what is too large.

`make test-clients` runs this: it takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import limit_rows
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
DEFLATE_ADDS = 8 << 10
"""What compressing adds at most to 4 MiB; it cannot be switched off."""
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


@pytest.mark.parametrize("kills", [False, True], ids=["undisturbed", "leader killed"])
def test_a_new_group_begins_at_the_end_of_a_queue_that_is_trimmed(trimmed_group, cpp, kills):
    client = cpp(trimmed_group.namesrv)
    limit_rows.a_new_group_begins_at_the_end_of_a_trimmed_queue(
        trimmed_group, client, f"CppTrimmed{kills}", kills=kills
    )


def test_a_body_of_4_mib_is_stored_and_one_that_is_longer_is_refused(quick_group, cpp):
    with Wiretap(quick_group) as tap:
        limit_rows.only_a_body_of_4_mib_is_stored(quick_group, tap, cpp(tap.namesrv), "CppLarge", adds=DEFLATE_ADDS)


def test_a_member_takes_over_what_one_leaves_that_is_killed(quick_group, cpp):
    topic = "CppTakenOver"
    create_topic(quick_group, topic)
    members = [cpp(quick_group.namesrv), cpp(quick_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, TAKEN_OVER_SECONDS, kills=True)
