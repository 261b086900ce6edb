"""`dledger cluster health` looks at real processes, through their client ports alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bare_client import BareClient
from cluster_checks import wait_until

from dledger_client.testing import LocalCluster
from dledger_client.testing.ports import find_free_block
from dledger_remoting.codes import RequestCode

HEALTH = (sys.executable, "-m", "dledger_admin", "cluster", "health", "--max-disk", "100")
GROUP = "broker-a"


@pytest.fixture(scope="module")
def founded() -> Iterator[LocalCluster]:
    with LocalCluster(
        config="register_period_ms = 500\nregister_timeout_ms = 3000\n[namesrv]\nscan_interval_ms = 500\n"
    ) as started:
        yield started


@pytest.fixture
def cluster(founded: LocalCluster) -> LocalCluster:
    """The cluster of all tests, of which every node runs and is well."""
    for node_id in founded.node_ids:
        if founded.pid(node_id) is None:
            founded.restart(node_id)
    await_health(founded, lambda found: found["healthy"])
    return founded


def look(namesrv: str) -> tuple[int, dict[str, Any]]:
    command = [*HEALTH, "--namesrv", namesrv, "-o", "json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode, json.loads(done.stdout)


def await_health(
    cluster: LocalCluster, condition: Callable[[dict[str, Any]], bool], namesrv: str = ""
) -> dict[str, Any]:
    """Look until something is so: processes need a moment to find each other, and to miss each other."""
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


def test_a_killed_node_is_missed_although_name_servers_have_dropped_it(cluster: LocalCluster) -> None:
    dead = next(node_id for node_id in cluster.node_ids if node_id != cluster.leader())
    cluster.kill(dead)
    assert wait_until(lambda: not is_listed(cluster, dead), 60)
    found = await_health(cluster, lambda found: {problem["subject"] for problem in found["problems"]} == {dead})
    assert problems(found, dead).startswith("does not answer")
    assert next(node for node in found["nodes"] if node["node"] == dead)["role"] == "no answer"
    cluster.restart(dead)
    await_health(cluster, lambda found: found["healthy"])


def test_a_group_without_a_majority_has_no_leader(cluster: LocalCluster) -> None:
    alone, *dead = cluster.node_ids
    for node_id in dead:
        cluster.kill(node_id)

    def is_alone(found: dict[str, Any]) -> bool:
        """One that led has to miss the others first, before it stops."""
        role = next(node["role"] for node in found["nodes"] if node["node"] == alone)
        return role != "leader" and "1 of 3 voters answer, 2 are needed" in problems(found, GROUP)

    found = await_health(cluster, is_alone)
    assert {*dead} <= {problem["subject"] for problem in found["problems"]}


@contextmanager
def name_server(directory: Path) -> Iterator[str]:
    """A name server with which no node registers."""
    port = find_free_block([0])
    config = directory / "namesrv.toml"
    config.write_text(f'port = {port}\ndata = "{directory / "data"}"\n')
    command = [sys.executable, "-m", "dledger_namesrv", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate(timeout=30)


def test_a_name_server_that_nodes_do_not_know_is_told_from_dead_nodes(cluster: LocalCluster, tmp_path: Path) -> None:
    with name_server(tmp_path) as other:
        both = f"{other};{cluster.namesrv}"

        def is_told_of_each(found: dict[str, Any]) -> bool:
            """The name server has begun to answer, and no node has anything else to complain of."""
            return {problem["subject"] for problem in found["problems"]} == set(cluster.node_ids)

        found = await_health(cluster, is_told_of_each, both)
    assert found["name_servers"][other]
    assert all(f"is not registered with {other}" in problem["text"] for problem in found["problems"])


def test_watching_goes_on_until_it_is_interrupted(cluster: LocalCluster) -> None:
    # What starts the tests may have SIGINT ignored, as shells do for what they run in the background.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from dledger_admin.cli import main; main()"
    )
    command = [sys.executable, "-c", program, *HEALTH[3:], "--namesrv", cluster.namesrv]
    with subprocess.Popen([*command, "--watch", "0.2", "-o", "json"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            looks = [json.loads(process.stdout.readline())["healthy"] for _ in range(3)]
            while looks[-3:] != [True] * 3 and len(looks) < 300:
                looks.append(json.loads(process.stdout.readline())["healthy"])
            os.kill(process.pid, signal.SIGINT)
            rest, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    last = [*looks, *(json.loads(line)["healthy"] for line in rest.splitlines())][-1]
    assert looks[-3:] == [True] * 3
    assert process.returncode == (0 if last else 3)
