"""The unmodified C++ client fails no send to a topic with write aliases when the leader is killed and stays away.

One thread sends: with several, some of their sends fail all the same (docs/compatibility.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import alias_stories
import pytest

from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


def test_no_send_of_one_thread_fails_when_the_leader_is_killed_and_stays_away(cluster, cpp):
    alias_stories.leader_killed_for_good(cluster, cpp(cluster.namesrv), "CppAliases", senders=1)
