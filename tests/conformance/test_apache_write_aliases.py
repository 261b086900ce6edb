"""Apache's Java clients fail no send to a topic with write aliases when the leader is killed and stays away.

Go's has no test here: 2.1.2 forgets, when it tries again, which broker it has tried (docs/compatibility.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import alias_stories
import pytest
from stock_clients import JAVA_CLIENTS

from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_no_send_fails_when_the_leader_is_killed_and_stays_away(cluster, apache, asynchronous):
    client = apache(cluster.namesrv)
    alias_stories.leader_killed_for_good(cluster, client, "JavaAliases", senders=16, asynchronous=asynchronous)
