"""Apache's Java clients fail no send to a topic with write aliases when the leader is killed and stays away.

Both lines may leave a thread waiting on the broken connection until its time limit (docs/compatibility.md). Release
5.3.3 can be told to give up earlier, and then tries again. Release 4.9.8 cannot. Go's client has no test here: release
2.1.2 forgets, when it tries again, which broker it has tried.
"""

from __future__ import annotations

import alias_stories
import pytest
import stories
from stock_clients import JAVA_CLIENTS

SENDERS = 16
TRY_MS = 5_000
SEND_MS = 20_000
"""Time limit of a send in ms, enough for three tries on a busy machine."""
BOTH_WAYS = pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])


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
