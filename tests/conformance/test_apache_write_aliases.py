"""Apache's Java clients fail no send to a topic with write aliases when the leader is killed and stays away.

Both lines may leave a thread waiting on the connection that broke, until its time is over (docs/compatibility.md).
5.3.3 can be told to give up earlier, and tries again then; 4.9.8 cannot. Go's has no test here: 2.1.2 forgets, when it
tries again, which broker it has tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import alias_stories
import pytest
import stories
from stock_clients import JAVA_CLIENTS

from dledger_client.testing import LocalCluster

SENDERS = 16
TRY_MS = 5_000
SEND_MS = 20_000
"""For three tries, and a machine that has more to do."""
BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


@BOTH_WAYS
@pytest.mark.parametrize("program", JAVA_CLIENTS[:1], indirect=True)
def test_no_send_fails_when_the_leader_is_killed_and_stays_away(cluster, apache, asynchronous):
    client = apache(cluster.namesrv)
    client.call("bound_tries", send_ms=SEND_MS, try_ms=TRY_MS)
    alias_stories.leader_killed_for_good(cluster, client, "JavaAliases", SENDERS, asynchronous=asynchronous)


@BOTH_WAYS
@pytest.mark.parametrize("program", JAVA_CLIENTS[1:], indirect=True)
def test_only_sends_that_wait_on_the_broken_connection_fail(cluster, apache, asynchronous):
    client = apache(cluster.namesrv)
    alias_stories.leader_killed_for_good(
        cluster, client, "JavaAliases", SENDERS, is_own_fault=stories.has_waited, asynchronous=asynchronous
    )
