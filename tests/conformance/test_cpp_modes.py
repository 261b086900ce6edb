"""The unmodified C++ client (PyPI `rocketmq` 0.4.4) broadcasts, shares groups, obeys resets and limits."""

from __future__ import annotations

from functools import partial

import limit_rows
import mode_rows
import pytest
import reset_rows
import stories
from cluster_checks import create_topic
from rows import row_fixture
from wiretap import Wiretap

pytestmark = pytest.mark.long
TAKEN_OVER_SECONDS = 120.0
DEFLATE_ADDS = 8 << 10
"""Maximum number of bytes that compression adds to 4 MiB. It cannot be switched off."""
ROWS = {
    "every member of a broadcast group gets everything": mode_rows.every_member_of_a_broadcast_group_gets_everything,
    "members of both kinds share the queues of a group": mode_rows.members_of_both_kinds_share_the_queues_of_a_group,
    "a live group continues at the reset offset": partial(
        reset_rows.a_live_group_goes_on_where_it_is_told, reset=reset_rows.by_mqadmin
    ),
    "a group reset while absent returns at the reset offset": partial(
        reset_rows.a_group_that_is_away_comes_back_where_it_was_told, reset=reset_rows.by_mqadmin
    ),
}
row = row_fixture("cpp", asks_once=True)


@pytest.mark.parametrize("passes", ROWS.values(), ids=ROWS)
def test_the_client_passes_a_row(row, passes):
    passes(row)


@pytest.mark.parametrize("kills", [False, True], ids=["undisturbed", "leader killed"])
def test_a_new_group_begins_at_the_end_of_a_queue_that_is_trimmed(trimmed_group, cpp, kills):
    client = cpp(trimmed_group.namesrv)
    limit_rows.a_new_group_begins_at_the_end_of_a_trimmed_queue(
        trimmed_group, client, f"CppTrimmed{kills}", kills=kills
    )


def test_a_body_of_4_mib_is_stored_and_one_that_is_longer_is_refused(quick_group, cpp):
    with Wiretap(quick_group) as tap:
        limit_rows.only_a_body_of_4_mib_is_stored(quick_group, tap, cpp(tap.namesrv), "CppLarge", adds=DEFLATE_ADDS)


def test_a_member_takes_over_the_queues_of_a_killed_member(quick_group, cpp):
    topic = "CppTakenOver"
    create_topic(quick_group, topic)
    members = [cpp(quick_group.namesrv), cpp(quick_group.namesrv)]
    stories.two_members(members, f"{topic}-readers", topic, TAKEN_OVER_SECONDS, kills=True)
