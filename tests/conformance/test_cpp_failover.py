"""The unmodified C++ client goes on over the loss and the restart of nodes, and loses nothing that was acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stories

from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


def test_it_goes_on_after_a_kill_of_the_leader_that_stays_away(cluster, cpp):
    stories.leader_killed_for_good(cluster, cpp(cluster.namesrv), "CppKill")


def test_a_rolling_restart_of_all_nodes_fails_none_of_its_sends(cluster, cpp):
    stories.rolling_restart(cluster, cpp(cluster.namesrv), "CppRolling")
