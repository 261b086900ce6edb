"""What a local cluster promises before any process runs; `tests/integration` has the rest."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from dledger_client.testing import ClusterError, LocalCluster
from dledger_client.testing.cluster import _runs
from dledger_client.testing.ports import block_ports, find_base_port


def test_nodes_have_the_names_and_ports_of_dledger_up():
    cluster = LocalCluster(groups=2)
    assert cluster.groups == ("broker-a", "broker-b")
    assert cluster.members("broker-b") == ("broker-b-n0", "broker-b-n1", "broker-b-n2")
    cluster._base_port = 20_000
    assert cluster.client_address("broker-b-n2") == "127.0.0.1:20120"
    assert cluster.namesrv == "127.0.0.1:20095"
    with pytest.raises(ClusterError, match="there is no node 'broker-c-n0'"):
        cluster.client_address("broker-c-n0")


def test_ports_of_a_block_are_distinct_and_below_the_systems_own():
    ports = block_ports(find_base_port(3, 3), 3, 3)
    assert len(ports) == len(set(ports)) == 3 * 3 * 3 + 1
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


def test_the_remains_of_a_process_do_not_count_as_running():
    assert _runs(os.getpid())
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not _runs(process.pid)
    process.wait()
    assert not _runs(process.pid)


def test_a_cluster_that_was_not_started_says_so_and_stops_without_harm():
    cluster = LocalCluster()
    cluster.stop()
    with pytest.raises(ClusterError, match="not started"):
        _ = cluster.data_dir
