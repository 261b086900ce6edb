"""Apache RocketMQ's own clients, unmodified, broadcast, pull and use namespaces, also when the leader is killed."""

from __future__ import annotations

from pathlib import Path

import mode_rows
import pytest
import rows
from cluster_checks import create_topic
from rows import RETRY_SECONDS, Row

from dledger_client import SyncAdmin

PULLED = 20
pytestmark = pytest.mark.usefixtures("program")  # the row starts it
row = rows.row_fixture("apache")


@pytest.mark.parametrize(
    "passes",
    [
        mode_rows.every_member_of_a_broadcast_group_gets_everything,
        mode_rows.members_of_both_kinds_share_the_queues_of_a_group,
    ],
)
def test_the_client_passes_a_row(row, passes):
    passes(row)


def committed(row: Row) -> int:
    """Return the number of messages of the row's topic that its group has committed."""
    with SyncAdmin(row.cluster.namesrv) as admin:
        return sum(queue.committed or 0 for queue in admin.offsets(row.group, row.topic))


def test_a_lite_pull_consumer_continues_at_its_committed_offset(row):
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
                # The client commits one-way. A commit that is lost with the leader makes it read those messages again.
                assert rows.wait_until(lambda: committed(row) == PULLED, RETRY_SECONDS)
                row.kill()
        rows.assert_stored_as_often_as_sent(row)


def test_names_and_retries_in_a_namespace_equal_those_of_our_client(row, program):
    # Go's client shows full names to applications.
    mode_rows.names_and_retries_are_within_a_namespace(row, shows_plain_names=Path(program[0]).stem == "java")
