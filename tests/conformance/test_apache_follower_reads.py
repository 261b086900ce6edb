"""Apache's Java consumers read from followers when they are told to, and miss nothing when one is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import stories
from cluster_checks import create_topic
from stock_clients import JAVA_CLIENTS

from dledger_client.testing import LocalCluster
from tests.integration.bare_client import metrics

pytestmark = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster", config='follower_reads = "spread"') as started:
        yield started


def test_a_consumer_of_a_killed_follower_reads_from_another_node(cluster, apache):
    client = apache(cluster.namesrv)
    topic = "FollowerReads"
    create_topic(cluster, topic)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.begin("stream", topic=topic, prefix="", count=stories.ENDLESS, pause_ms=5)
    followers = [node for node in cluster.node_ids if node != cluster.leader()]
    served = dict.fromkeys(followers, 0.0)

    def followers_serve() -> bool:
        for node in followers:
            served[node] = delivered(cluster, node)
        return all(served.values())

    client.wait_for(followers_serve, f"followers deliver, not {served}", timeout=stories.PATIENCE_SECONDS)
    cluster.kill(followers[0])
    seen = delivered(cluster, followers[1])
    client.wait_for(
        lambda: delivered(cluster, followers[1]) > seen + 100,
        "the other follower goes on meanwhile",
        timeout=stories.PATIENCE_SECONDS,
    )
    stories.finish(cluster, client, topic)
    assert len(client.bodies("reader")) == len(set(client.bodies("reader"))), "nothing comes twice"


def delivered(cluster: LocalCluster, node: str) -> float:
    return metrics(cluster.client_address(node))["dledger_broker_messages_out_total", ""]
