"""Apache RocketMQ's own clients, unmodified, broadcast, pull and use namespaces, also when the leader is killed.

`make test-clients` runs this; it needs a JDK and Maven.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import mode_rows
import pytest
import rows
from cluster_checks import create_topic
from rows import RETRY_SECONDS, Row
from wiretap import Wiretap

from dledger_client import SyncAdmin

pytestmark = pytest.mark.parametrize("row", [False, True], ids=["undisturbed", "leader killed"], indirect=True)
PULLED = 20
_NUMBERS = count()


@pytest.fixture
def row(quick_group, apache, request) -> Iterator[Row]:
    with Wiretap(quick_group) as tap:
        yield Row(quick_group, tap, apache, f"ApacheMode{next(_NUMBERS)}", kills=request.param)


def test_every_member_of_a_broadcast_group_gets_everything(row):
    mode_rows.every_member_of_a_broadcast_group_gets_everything(row)


def committed(row: Row) -> int:
    """How many messages of the row's topic its group has committed."""
    with SyncAdmin(row.cluster.namesrv) as admin:
        return sum(queue.committed or 0 for queue in admin.offsets(row.group, row.topic))


def test_a_lite_pull_consumer_goes_on_where_it_committed(row):
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        for first in (0, PULLED):
            bodies = [f"pulled {number}" for number in range(first, first + PULLED)]
            for body in bodies:
                rows.send(client, topic=row.topic, body=body)
            found: list[str] = []
            while missing := {*bodies} - {*found}:
                found += client.call(
                    "lite_pull", group=row.group, topic=row.topic, count=len(missing), timeout=RETRY_SECONDS
                )
            if not row.kills:
                assert sorted(found) == sorted(bodies)
            assert {*found} == {*bodies}, "what was committed does not come again"
            if first == 0:
                # It commits one-way: what the leader takes with it before it was stored is read again.
                assert rows.wait_until(lambda: committed(row) == PULLED, RETRY_SECONDS)
                row.kill()
        rows.assert_stored_as_often_as_sent(row)


def test_names_and_retries_are_within_a_namespace_and_ours_are_the_same(row, program):
    # Go's client shows applications the whole names.
    mode_rows.names_and_retries_are_within_a_namespace(row, shows_plain_names=Path(program[0]).stem == "java")


def test_members_of_both_kinds_share_the_queues_of_a_group(row):
    mode_rows.members_of_both_kinds_share_the_queues_of_a_group(row)
