"""Only a client that knows a group's secret can change its leadership and members."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

from cluster_checks import wait_until
from commands import run

from dledger_admin.cluster.manifest import require_manifest
from dledger_admin.cluster.probes import NodeStatus, fetch_status
from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture()


def dledger(*arguments: object, code: int = 0) -> str:
    done = run("node", *arguments)
    assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def status(cluster: LocalCluster, node_id: str) -> NodeStatus | None:
    return fetch_status(require_manifest(cluster.data_dir).layout(cluster.data_dir).place(node_id))


def follower(cluster: LocalCluster) -> str:
    """Return the id of a voter that is no leader."""
    leader = cluster.leader()
    return next(node_id for node_id in voters(cluster) if node_id != leader)


def voters(cluster: LocalCluster) -> list[str]:
    """Return the voters that the leader reports, as soon as it answers."""
    found: list[str] = []

    def is_told() -> bool:
        said = status(cluster, cluster.leader())
        found[:] = said.voters if said is not None else []
        return bool(found)

    assert wait_until(is_told, 60)
    return found


def test_a_node_leads_on_demand_in_a_directory_or_a_cluster_that_name_servers_know(cluster: LocalCluster) -> None:
    node_id = follower(cluster)
    shown = json.loads(dledger("lead", "--data", cluster.data_dir, node_id, "-o", "json"))
    assert (shown["node"], shown["broker_group"], shown["state"]) == (node_id, "broker-a", "leads")
    assert cluster.leader() == node_id
    node_id = follower(cluster)
    config = cluster.data_dir / "broker-a-n2" / "broker.toml"
    assert dledger("lead", "--namesrv", cluster.namesrv, "--config", config, node_id) == f"{node_id} leads\n"
    assert cluster.leader() == node_id


def test_a_wrong_secret_changes_no_leader_and_no_member(cluster: LocalCluster, tmp_path: Path) -> None:
    leader, node_id = cluster.leader(), follower(cluster)
    secret = tmp_path / "secret"
    secret.write_text("another secret of theirs\n")
    secret.chmod(0o600)
    for words in (("lead",), ("remove", "--yes")):
        said = dledger(*words, "--namesrv", cluster.namesrv, "--secret-file", secret, node_id, code=1)
        assert "the secret is not this group's" in said
    place = require_manifest(cluster.data_dir).layout(cluster.data_dir).place(leader)
    for method, path in (("PUT", f"/leader/{node_id}"), ("DELETE", f"/members/{node_id}")):
        connection = http.client.HTTPConnection("127.0.0.1", place.http_port, timeout=10)
        connection.request(method, path)
        assert connection.getresponse().status == 401
        connection.close()
    assert sorted(voters(cluster)) == sorted(cluster.node_ids)


def test_a_node_is_removed_for_good(cluster: LocalCluster) -> None:
    node_id = follower(cluster)
    cluster.kill(node_id)
    said = dledger("remove", "--data", cluster.data_dir, node_id, code=2)
    assert "no terminal to ask at: give --yes" in said
    said = dledger("remove", "--data", cluster.data_dir, node_id, "--dry-run")
    assert said.startswith(f"this goes:\n  node {node_id} of broker-a, with its vote: ")
    assert node_id in voters(cluster)
    said = dledger("remove", "--data", cluster.data_dir, node_id, "--yes")
    assert said == f"{node_id} is being removed\n"

    def is_gone() -> bool:
        found = status(cluster, cluster.leader())
        return found is not None and node_id not in (*found.voters, *found.learners)

    assert wait_until(is_gone, 30)
    assert "is a member of no group" in dledger("remove", "--yes", "--data", cluster.data_dir, node_id, code=1)
