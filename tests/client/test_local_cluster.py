"""Promises of a local cluster before any process runs. `tests/integration` has the rest."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from dledger_client.testing import ClusterError, LocalCluster
from dledger_client.testing.cluster import NodeStatus, _is_running
from dledger_client.testing.ports import (
    FIRST_BASE_PORT,
    LAST_BASE_PORT,
    OWN_BLOCKS,
    _Blocks,
    block_ports,
    find_base_port,
    find_free_block,
)


def test_nodes_have_the_names_and_ports_of_dledger_up():
    cluster = LocalCluster(groups=2)
    assert cluster.groups == ("broker-a", "broker-b")
    assert cluster.members("broker-b") == ("broker-b-n0", "broker-b-n1", "broker-b-n2")
    cluster._base_port = 20_000
    assert cluster.client_address("broker-b-n2") == "127.0.0.1:20120"
    assert cluster.namesrv == "127.0.0.1:20095"
    with pytest.raises(ClusterError, match="there is no node 'broker-c-n0'"):
        cluster.client_address("broker-c-n0")


def test_the_environment_names_the_engine_of_clusters_that_name_none(monkeypatch, tmp_path):
    monkeypatch.delenv("DLEDGER_ENGINE", raising=False)
    assert "--engine" not in LocalCluster(data_dir=tmp_path)._up_options()
    monkeypatch.setenv("DLEDGER_ENGINE", "pysyncobj")
    assert LocalCluster(data_dir=tmp_path)._up_options()[-2:] == ["--engine", "pysyncobj"]
    assert LocalCluster(data_dir=tmp_path, engine="native")._up_options()[-2:] == ["--engine", "native"]


def test_ports_of_a_block_are_distinct_and_below_the_systems_own():
    ports = block_ports(find_base_port(3, 3), 3, 3)
    assert len(ports) == len(set(ports)) == 3 * 3 * 4 + 1
    assert max(ports) < 32_768


def test_a_block_with_a_taken_port_is_not_offered(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr("dledger_client.testing.ports.FIRST_BASE_PORT", port)
        monkeypatch.setattr("dledger_client.testing.ports.LAST_BASE_PORT", port + 1)
        with pytest.raises(OSError, match="no block of free ports"):
            find_base_port(1, 3)


def test_a_port_block_belongs_to_its_process_before_any_port_listens():
    """Otherwise another test's cluster could take the ports of a node that is down."""
    give = "from dledger_client.testing import ports; print(ports.find_free_block([0, 120]), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", give], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        base = int(other.stdout.readline())
        for first in (base, base + 100):
            with pytest.raises(OSError, match="no block of free ports"):
                find_free_block([0], first, first + 1)
        other.communicate(b"\n")
    assert find_free_block([0, 120], base, base + 1) == base


def test_a_port_block_is_given_again_only_if_its_ports_are_free():
    blocks = _Blocks()
    given = [blocks.give([0, 3], range(FIRST_BASE_PORT, LAST_BASE_PORT, 100)) for _ in range(OWN_BLOCKS)]
    assert len(set(given)) == OWN_BLOCKS
    with socket.create_server(("127.0.0.1", given[0] + 3)):
        assert blocks.give([0], range(FIRST_BASE_PORT, LAST_BASE_PORT, 100)) == given[1]
    assert blocks.give([0], range(FIRST_BASE_PORT, LAST_BASE_PORT, 100)) == given[0]


def test_clusters_of_two_groups_share_no_port_blocks(monkeypatch):
    # There are few blocks, and other processes beside this test may have claimed too many.
    monkeypatch.setattr("dledger_client.testing.ports._claim_block", lambda _: socket.socket())
    monkeypatch.setattr("dledger_client.testing.ports._is_free", lambda _: True)
    blocks, few = _Blocks(), range(FIRST_BASE_PORT, FIRST_BASE_PORT + 2000, 100)
    given = [blocks.give([0, 103], few) for _ in range(OWN_BLOCKS // 2)]
    assert len({base + step for base in given for step in (0, 100)}) == OWN_BLOCKS


def test_the_remains_of_a_process_do_not_count_as_running():
    assert _is_running(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not _is_running(process.pid)
    process.wait()
    assert not _is_running(process.pid)


STAND_IN = """
import os, signal, subprocess, sys
from pathlib import Path

command, data = sys.argv[1], Path(sys.argv[sys.argv.index("--data") + 1])
if command == "down":
    sys.exit()
node = data / "broker-a-n0"
node.mkdir(parents=True, exist_ok=True)
pause = "import signal; signal.pause()"
arguments = [sys.executable, "-P", "-c", pause, "--config", f"{node}/broker.toml"]
child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
(data.parents[1] / "child").write_text(str(child.pid))
if os.environ.get("BEHAVIOUR") == "hangs":
    def stop(*_):
        child.kill()
        child.wait()
        sys.exit(1)
    signal.signal(signal.SIGTERM, stop)
    (data.parents[1] / "hanging").touch()
    while True:
        signal.pause()
(node / "pid").write_text(str(child.pid))
os._exit(0)
"""


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Replace `dledger up` by a program that starts one process. Yield a function that returns its pid."""
    package = tmp_path / "stubs" / "dledger_admin"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stubs"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def pid() -> int:
        return int((tmp_path / "child").read_text())

    yield pid
    with suppress(ProcessLookupError):
        os.kill(pid(), signal.SIGKILL)


def assert_nothing_is_left(child: Callable[[], int], tmp_path: Path) -> None:
    assert not _is_running(child())
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("dledger-")]


def test_an_interrupt_in_the_middle_of_a_start_leaves_neither_processes_nor_files(child, tmp_path, monkeypatch):
    monkeypatch.setenv("BEHAVIOUR", "hangs")

    def press_ctrl_c() -> None:
        while not (tmp_path / "hanging").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        Thread(target=press_ctrl_c).start()
        with pytest.raises(KeyboardInterrupt), LocalCluster():
            pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert_nothing_is_left(child, tmp_path)


async def test_a_start_that_is_cancelled_leaves_neither_processes_nor_files(child, tmp_path):
    async def use() -> None:
        async with LocalCluster():
            pytest.fail("it was cancelled before")

    using = asyncio.create_task(use())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert_nothing_is_left(child, tmp_path)


def test_stopping_a_cluster_with_a_killed_paused_node_stops_all_others(child, tmp_path):
    cluster = LocalCluster()
    cluster.start()
    cluster._paused.add("broker-a-n1")
    cluster.stop()
    assert_nothing_is_left(child, tmp_path)


def test_a_second_start_of_a_running_cluster_is_refused_without_harm(child, tmp_path):
    kept = tmp_path / "kept" / "data"
    for data_dir in (None, kept):
        with LocalCluster(data_dir=data_dir) as cluster:
            for again in (cluster, *([LocalCluster(data_dir=kept)] if data_dir else [])):
                with pytest.raises(ClusterError, match="broker-a-n0 of the cluster run: stop it first"):
                    again.start()
            assert cluster.pid("broker-a-n0") == child()
            assert (cluster.data_dir / "broker-a-n0").is_dir()
            cluster.kill("broker-a-n0")
            cluster.start()
            assert cluster.pid("broker-a-n0") == child()


def test_a_second_start_that_fails_keeps_the_data(child, tmp_path, monkeypatch):
    with LocalCluster() as cluster:
        cluster.kill("broker-a-n0")
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(ClusterError, match="ended with 1"):
            cluster.start()
        assert (cluster.data_dir / "broker-a-n0").is_dir()


def test_a_stale_pid_file_kills_no_other_process(child, tmp_path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as somebody:
        cluster = LocalCluster(data_dir=tmp_path / "kept" / "data")
        cluster.start()
        for name in ("broker-a-n1", "namesrv"):
            (cluster.data_dir / name).mkdir()
            (cluster.data_dir / name / "pid").write_text(str(somebody.pid))
        assert cluster.pid("broker-a-n0") == child()
        assert cluster.pid("broker-a-n1") is None
        cluster.stop()
        assert not _is_running(child())
        assert somebody.poll() is None
        somebody.kill()


def test_a_cluster_starts_wherever_the_tests_run(child, tmp_path, monkeypatch):
    (tmp_path / "signal.py").write_text("raise SystemExit('a file of the tests')")
    monkeypatch.chdir(tmp_path)
    with LocalCluster() as cluster:
        assert cluster.pid("broker-a-n0") == child()


def test_nodes_are_waited_for_whenever_the_leader_does_not_answer_in_time(monkeypatch):
    cluster, asked = LocalCluster(), []

    def status(node_id: str) -> NodeStatus | None:
        """Return a node's status. The leader's second answer is missing, and a follower lags at first."""
        asked.append(node_id)
        if node_id == "broker-a-n0":
            role, applied = "leader", 9
            if asked.count(node_id) == 2:
                return None
        else:
            role, applied = "follower", min(asked.count(node_id) + 5, 9)
        return NodeStatus(node_id, "broker-a", role, 4, "broker-a-n0", 9, applied, 0, 100, 100)

    monkeypatch.setattr(cluster, "status", status)
    cluster.wait_ready()
    assert asked.count("broker-a-n2") >= 4


def test_a_cluster_that_was_not_started_can_be_stopped_and_refuses_other_calls():
    cluster = LocalCluster()
    cluster.stop()
    with pytest.raises(ClusterError, match="not started"):
        _ = cluster.data_dir
