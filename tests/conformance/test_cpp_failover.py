"""The unmodified C++ client goes on over the loss and the restart of nodes, and loses nothing that was acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_checks import (
    assert_offsets_unique_and_dense,
    bodies_of,
    create_topic,
    dledger,
    stop_and_compare_logs,
    stored_messages,
)

from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.slow

ROUTE_PERIOD_SECONDS = 30
"""How often a stock client asks for the route; it dials a dead leader until then."""

ENDLESS = 1_000_000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(data_dir=tmp_path / "cluster") as started:
        yield started


def begin(cluster, client, topic):
    """Send without end from one thread while a push consumer reads."""
    create_topic(cluster, topic)
    client.call("push", name="reader", group=f"{topic}-readers", topic=topic)
    client.begin("stream", topic=topic, prefix="", count=ENDLESS, pause_ms=5)
    progress(client, 100)


def progress(client, messages, timeout=ROUTE_PERIOD_SECONDS + 15.0):
    """Wait until this many more messages are acknowledged."""
    target = len(client.sent) + messages
    client.wait_for(lambda: len(client.sent) >= target, f"{messages} more acknowledged", timeout=timeout)


def finish(cluster, client, topic):
    """Stop sending; hold what was acknowledged against what is stored and what the push consumer got."""
    client.call("stop_streams")
    acknowledged = client.acknowledged()
    client.wait_for(
        lambda: acknowledged <= set(client.bodies("reader")),
        "everything is consumed",
        timeout=ROUTE_PERIOD_SECONDS + 15.0,
    )
    messages = stored_messages(cluster, topic)
    assert_offsets_unique_and_dense(messages)
    assert acknowledged <= set(bodies_of(messages))


def test_it_goes_on_after_a_kill_of_the_leader_that_stays_away(cluster, cpp):
    client = cpp(cluster.namesrv)
    begin(cluster, client, "CppKill")
    killed = cluster.kill_leader()
    progress(client, 100)
    finish(cluster, client, "CppKill")
    cluster.restart(killed)
    stop_and_compare_logs(cluster)


def test_a_rolling_restart_of_all_nodes_fails_none_of_its_sends(cluster, cpp):
    client = cpp(cluster.namesrv)
    begin(cluster, client, "CppRolling")
    for node_id in cluster.node_ids:
        dledger("node", "stop", "--data", str(cluster.data_dir), node_id)
        cluster.restart(node_id)
        cluster.wait_ready()
        progress(client, 100)
    assert client.failed == []
    finish(cluster, client, "CppRolling")
    stop_and_compare_logs(cluster)
