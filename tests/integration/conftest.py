"""Clusters and topics for single tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_checks import create_topic

from dledger_client.testing import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Start a cluster for this test only, whose data outlives it."""
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a name for what belongs to this test only."""
    return request.node.originalname.removeprefix("test_")[:100]


@pytest.fixture
def topic(cluster: LocalCluster, name: str) -> str:
    """Create a topic for this test only, on a cluster whose nodes all run."""
    for node_id in cluster.node_ids:
        if cluster.pid(node_id) is None:
            cluster.restart(node_id)
    cluster.wait_ready()
    create_topic(cluster, name)
    return name
