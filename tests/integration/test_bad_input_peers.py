"""Nodes that disagree report that in one line that names both, and the majority continues."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bare_client import BareClient, broker_log, followers, metrics, until
from cluster_checks import status_of

from dledger_admin.cluster.toml_text import TomlTable, dump
from dledger_chaos.disk.build import disk_shim
from dledger_chaos.disk.control import DiskControl, shim_environment
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import ResponseCode

pytestmark = pytest.mark.long

OFFSET_S = 20
CLOCK_METRIC = "dledger_raft_peer_clock_ahead_seconds"

cluster = local_cluster_fixture()


def configuration(cluster: LocalCluster, node_id: str) -> TomlTable:
    return tomllib.loads((cluster.data_dir / node_id / "broker.toml").read_text())


@contextmanager
def reconfigured(cluster: LocalCluster, node_id: str, table: TomlTable) -> Iterator[None]:
    """Run the node with another configuration. At the end restore the old one and let the node catch up."""
    file = cluster.data_dir / node_id / "broker.toml"
    before = file.read_text()
    file.write_text(dump(table))
    try:
        cluster.restart(node_id)
        yield
    finally:
        file.write_text(before)
        cluster.restart(node_id)
        cluster.wait_ready()


def assert_goes_on(cluster: LocalCluster) -> None:
    with BareClient(cluster.client_address(cluster.leader())) as client:
        assert client.send_message(b"x").code == ResponseCode.SUCCESS


def lines(cluster: LocalCluster, node_id: str, *words: str) -> list[str]:
    """Return the warnings of a node that contain all of these words."""
    log = broker_log(cluster, node_id).splitlines()
    return [line for line in log if "level=WARNING" in line and all(word in line for word in words)]


def test_a_node_with_another_secret_is_kept_out_and_told(cluster: LocalCluster, tmp_path: Path):
    odd = followers(cluster)[0]
    others = [node_id for node_id in cluster.node_ids if node_id != odd]
    secret = tmp_path / "secret"
    secret.write_bytes(b"another secret of this group")
    secret.chmod(0o600)
    with reconfigured(cluster, odd, {**configuration(cluster, odd), "secret_file": str(secret)}):
        for teller, peer in [*((odd, other) for other in others), *((other, odd) for other in others)]:
            event, words = f"node={teller} event=link_trouble", f"cannot link to peer {peer} at 127.0.0.1:"
            link = event, words, "the secrets differ"
            until(lambda teller=teller, link=link: bool(lines(cluster, teller, *link)), f"{teller} names {peer}")
            if teller == odd:
                (line,) = lines(cluster, teller, *link)
                assert "all nodes of a group need the same secret" in line
        assert_goes_on(cluster)
        assert status_of(cluster, odd).leader_id is None
    assert_goes_on(cluster)


def test_a_node_configured_with_wrong_members_logs_them_and_follows_the_log(cluster: LocalCluster):
    odd = followers(cluster)[0]
    table = configuration(cluster, odd)
    peers = table["peers"]
    assert isinstance(peers, dict)
    stranger, other = "broker-a-n9", min(peers)
    changed = {stranger if node_id == other else node_id: address for node_id, address in peers.items()}
    with reconfigured(cluster, odd, {**table, "peers": changed}):
        words = "event=members_differ", f"configuration of {odd} names the nodes", "group's members by its log are"
        until(lambda: bool(lines(cluster, odd, *words)), "a line on the members")
        (line,) = lines(cluster, odd, *words)
        assert ", ".join(sorted([odd, *changed])) in line
        assert ", ".join(cluster.node_ids) in line
        assert_goes_on(cluster)
        cluster.wait_ready()
    assert not [
        line for node_id in cluster.node_ids if node_id != odd for line in lines(cluster, node_id, "members_differ")
    ]


def test_a_wrong_clock_of_a_node_is_a_warning_and_a_metric_only(cluster, tmp_path, monkeypatch):
    odd = followers(cluster)[0]
    clock = DiskControl(tmp_path / odd)
    clock.set_clock(OFFSET_S)
    leading = cluster.leader()
    address = cluster.client_address(leading)
    for name, value in shim_environment(disk_shim(), cluster.data_dir, tmp_path).items():
        monkeypatch.setenv(name, value)
    cluster.restart(odd)
    clock.require_shim()
    until(lambda: abs(metrics(address)[CLOCK_METRIC, odd] - OFFSET_S) < 2, "the metric shows the difference")
    assert all(
        abs(value) < 2 for (name, peer), value in metrics(address).items() if name == CLOCK_METRIC and peer != odd
    )
    until(lambda: len(lines(cluster, leading, "event=clocks_differ")) == 1, "a line")
    line = lines(cluster, leading, "event=clocks_differ")[-1]
    assert f"peer={odd} " in line
    assert "its clock is" in line
    assert f"ahead of the clock of leader {leading}" in line
    assert re.search(r"at most 5000 ms expected.*synchronise the machines' clocks", line)
    assert_goes_on(cluster)
    assert cluster.leader() == leading
    clock.release_all()
    until(lambda: abs(metrics(address)[CLOCK_METRIC, odd]) < 2, "the metric shows that it is over")
    assert len(lines(cluster, leading, "event=clocks_differ")) == 1
