"""Real clusters through the `dledger` command: found, use, break, stop, check."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bare_client import BareClient
from cluster_checks import wait_until

from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.lifecycle import services
from dledger_admin.cluster.manifest import require_manifest
from dledger_admin.cluster.probes import NodeStatus, fetch_all
from dledger_client.testing import LocalCluster
from dledger_client.testing.ports import find_free_block
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.topics import AUTO_CREATE_TOPIC

pytestmark = pytest.mark.slow

NAMESRV_OFFSET = 90


class Cluster:
    """One group of three in a directory, driven by the command."""

    def __init__(self, data: Path) -> None:
        self.data = data
        base = find_free_block([*range(23), NAMESRV_OFFSET])
        self.ports = ("--base-port", str(base), "--namesrv-port", str(base + NAMESRV_OFFSET))
        self.namesrv = f"127.0.0.1:{base + NAMESRV_OFFSET}"

    def run(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        command = [sys.executable, "-m", "dledger_admin", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == code, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> None:
        self.run("up", "--data", str(self.data), *self.ports, "--detach")

    def down(self) -> None:
        self.run("down", "--data", str(self.data))

    def make_whole(self) -> None:
        """Start what does not run, and wait until all nodes are equal."""
        missing = [name for name, service in services(self.layout).items() if service.pid() is None]
        if len(missing) == len(services(self.layout)):
            self.up()
        else:
            for name in missing:
                self.start(name)
        until(self.equal)

    @property
    def layout(self) -> ClusterLayout:
        return require_manifest(self.data).layout(self.data)

    def statuses(self) -> list[NodeStatus]:
        return [status for status in fetch_all(self.layout.places()).values() if status is not None]

    def leaders(self) -> list[str]:
        return [status.node_id for status in self.statuses() if status.leads]

    def leader(self) -> str:
        found: list[str] = []

        def is_alone() -> bool:
            found[:] = self.leaders()
            return len(found) == 1

        until(is_alone)
        return found[0]

    def pids(self) -> dict[str, int | None]:
        return {name: service.pid() for name, service in services(self.layout).items()}

    def equal(self) -> bool:
        statuses = self.statuses()
        ends = {(one.commit_index, one.applied_index, one.last_position) for one in statuses}
        return len(statuses) == 3 and len(ends) == 1

    def produce(self, topic: str, lines: list[str]) -> None:
        text = "\n".join(lines)
        self.run("produce", "--namesrv", self.namesrv, "--topic", topic, "--key", "k", "--ordered", stdin=text)

    def consume(self, topic: str) -> list[str]:
        return self.run(
            "consume", "--namesrv", self.namesrv, "--topic", topic, "--from-beginning", "--exit-eof"
        ).splitlines()

    def kill(self, node_id: str) -> None:
        pid = services(self.layout)[node_id].pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def start(self, node_id: str) -> None:
        self.run("node", "start", "--data", str(self.data), node_id, "--detach")


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    assert wait_until(condition, timeout_s)


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    one = Cluster(tmp_path_factory.mktemp("founded") / "cluster")
    one.up()
    yield one
    one.down()
    assert not [name for name, service in services(one.layout).items() if service.pid()]


@pytest.fixture
def cluster(founded: Cluster) -> Cluster:
    """The cluster of all tests, of which every node runs."""
    founded.make_whole()
    return founded


def test_right_after_up_clients_find_where_to_make_a_topic(tmp_path):
    with LocalCluster(nodes=1, data_dir=tmp_path / "one") as started, BareClient(started.namesrv) as client:
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": AUTO_CREATE_TOPIC})
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_a_cluster_takes_messages_and_gives_them_back_after_a_stop_of_everything(cluster):
    lines = [f"line {number}" for number in range(200)]
    cluster.produce("Stop", lines)
    assert cluster.consume("Stop") == lines
    cluster.down()
    cluster.up()
    assert cluster.consume("Stop") == lines


def test_a_killed_leader_is_replaced_and_the_logs_are_identical_in_the_end(cluster):
    cluster.produce("Kill", ["before"])
    old = cluster.leader()
    cluster.kill(old)
    cluster.produce("Kill", ["after"])
    assert cluster.leader() != old
    cluster.start(old)
    until(cluster.equal)
    assert cluster.consume("Kill") == ["before", "after"]
    cluster.down()
    directories = [str(place.directory) for place in cluster.layout.places()]
    verified = json.loads(cluster.run("log", "verify", *directories, "-o", "json"))
    assert verified["ok"] is True
    assert verified["comparison"]["end_position"] > 0


def test_a_stopped_node_hands_over_and_the_group_goes_on(cluster):
    leader = cluster.leader()
    cluster.run("node", "stop", "--data", str(cluster.data), leader, "--now")
    cluster.produce("Handover", ["goes on"])
    assert cluster.leader() != leader
    cluster.start(leader)
    until(cluster.equal)
    assert cluster.consume("Handover") == ["goes on"]


def test_a_second_up_changes_nothing(cluster):
    before = cluster.pids()
    command = [sys.executable, "-m", "dledger_admin", "up", "--data", str(cluster.data), "--detach"]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1
    assert "running already" in again.stderr
    assert cluster.pids() == before
