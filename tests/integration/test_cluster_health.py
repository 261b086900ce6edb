"""`dledger cluster health` judges real processes through their client ports alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from bare_client import BareClient
from cluster_checks import wait_until
from commands import run

from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import RequestCode

pytestmark = pytest.mark.long


founded = local_cluster_fixture(
    config="register_period_ms = 500\nregister_timeout_ms = 3000\n[namesrv]\nscan_interval_ms = 500\n"
)


@pytest.fixture
def cluster(founded: LocalCluster) -> LocalCluster:
    """Return the common cluster once all its nodes run and are healthy."""
    for node_id in founded.node_ids:
        if founded.pid(node_id) is None:
            founded.restart(node_id)
    await_health(founded, lambda found: found["healthy"])
    return founded


def look(namesrv: str) -> tuple[int, dict[str, Any]]:
    done = run("cluster", "health", "--max-disk", 100, "--namesrv", namesrv, "-o", "json")
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def await_health(
    cluster: LocalCluster, condition: Callable[[dict[str, Any]], bool], namesrv: str = ""
) -> dict[str, Any]:
    """Repeat the check until a condition holds: processes need a moment to find each other, and to miss each other."""
    found: dict[str, Any] = {}

    def holds() -> bool:
        found.clear()
        code, result = look(namesrv or cluster.namesrv)
        found.update(result)
        assert code == (0 if result["healthy"] else 3)
        return condition(result)

    assert wait_until(holds, 60), found
    return found


def problems(found: dict[str, Any], subject: str) -> str:
    return "; ".join(problem["text"] for problem in found["problems"] if problem["subject"] == subject)


def test_a_healthy_cluster_shows_every_node_with_its_figures(cluster: LocalCluster) -> None:
    def names_the_leader(found: dict[str, Any]) -> bool:
        leading = [node["node"] for node in found["nodes"] if node["role"] == "leader"]
        return found["healthy"] and leading == [cluster.leader()]

    found = await_health(cluster, names_the_leader)
    assert {node["node"] for node in found["nodes"]} == {*cluster.node_ids}
    assert sorted(node["role"] for node in found["nodes"]) == ["follower", "follower", "leader"]
    for node in found["nodes"]:
        assert node["address"] == cluster.client_address(node["node"])
        assert node["term"] >= 1
        assert node["commit"] >= 0
        assert 0 < node["disk_used"] <= 1
        assert node["uptime_s"] >= 0
        assert abs(node["clock_ahead_ms"]) < 5_000
    assert len({node["version"] for node in found["nodes"]}) == 1
    assert found["name_servers"] == {cluster.namesrv: True}


def is_listed(cluster: LocalCluster, node_id: str) -> bool:
    with BareClient(cluster.namesrv) as client:
        answer = client.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {})
    return cluster.client_address(node_id).encode() in answer.body


def test_health_reports_a_killed_node_that_name_servers_dropped(cluster: LocalCluster) -> None:
    dead = next(node_id for node_id in cluster.node_ids if node_id != cluster.leader())
    cluster.kill(dead)
    assert wait_until(lambda: not is_listed(cluster, dead), 60)
    found = await_health(cluster, lambda found: {problem["subject"] for problem in found["problems"]} == {dead})
    assert problems(found, dead).startswith("does not answer")
    assert next(node for node in found["nodes"] if node["node"] == dead)["role"] == "no answer"
    cluster.restart(dead)
    await_health(cluster, lambda found: found["healthy"])
