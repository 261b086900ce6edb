"""Nodes that disagree say so in one line that names both, and the majority goes on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from bare_client import BareClient, broker_log, metrics, until
from cluster_checks import status_of

from dledger.environment import CLOCK_OFFSET_VARIABLE
from dledger_admin.cluster.toml_text import TomlTable, dump
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import ResponseCode

pytestmark = pytest.mark.slow

OFFSET_S = 20
CLOCK_METRIC = "dledger_raft_peer_clock_ahead_seconds"

cluster = local_cluster_fixture()


def a_follower(cluster: LocalCluster) -> str:
    leading = cluster.leader()
    return next(node_id for node_id in cluster.node_ids if node_id != leading)


def configuration(cluster: LocalCluster, node_id: str) -> TomlTable:
    return tomllib.loads((cluster.data_dir / node_id / "broker.toml").read_text())


@contextmanager
def reconfigured(cluster: LocalCluster, node_id: str, table: TomlTable) -> Iterator[None]:
    """The node with another configuration, and in the end with the one it had, caught up."""
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
    """The warnings of a node that hold all of these words."""
    log = broker_log(cluster, node_id).splitlines()
    return [line for line in log if "level=WARNING" in line and all(word in line for word in words)]


def test_a_node_with_another_secret_is_kept_out_and_told(cluster: LocalCluster, tmp_path: Path):
    odd = a_follower(cluster)
    others = [node_id for node_id in cluster.node_ids if node_id != odd]
    secret = tmp_path / "secret"
    secret.write_bytes(b"another secret of this group")
    secret.chmod(0o600)
    with reconfigured(cluster, odd, {**configuration(cluster, odd), "secret_file": str(secret)}):
        for other in others:
            words = (
                f"node={odd} event=link_trouble",
                f"cannot link to peer {other} at 127.0.0.1:",
                "the secrets differ",
            )
            until(lambda words=words: bool(lines(cluster, odd, *words)), f"{odd} names {other}")
            assert len(lines(cluster, odd, *words)) == 1
            assert "all nodes of a group need the same secret" in lines(cluster, odd, *words)[0]
            words = (
                f"node={other} event=link_trouble",
                f"cannot link to peer {odd} at 127.0.0.1:",
                "the secrets differ",
            )
            until(lambda words=words, other=other: bool(lines(cluster, other, *words)), f"{other} names {odd}")
        assert_goes_on(cluster)
        assert status_of(cluster, odd).leader_id is None
    assert_goes_on(cluster)


def test_a_node_that_was_told_of_other_members_says_which_and_follows_the_log(cluster: LocalCluster):
    odd = a_follower(cluster)
    table = configuration(cluster, odd)
    peers = table["peers"]
    assert isinstance(peers, dict)
    stranger, other = "broker-a-n9", min(peers)
    changed = {stranger if node_id == other else node_id: address for node_id, address in peers.items()}
    with reconfigured(cluster, odd, {**table, "peers": changed}):
        words = (
            "event=members_differ",
            f"the configuration of {odd} names the nodes",
            "group's members by its log are",
        )
        until(lambda: bool(lines(cluster, odd, *words)), "a line on the members")
        assert len(lines(cluster, odd, *words)) == 1
        (line,) = lines(cluster, odd, *words)
        assert ", ".join(sorted([odd, *changed])) in line
        assert ", ".join(cluster.node_ids) in line
        assert_goes_on(cluster)
        cluster.wait_ready()
    assert not [
        line for node_id in cluster.node_ids if node_id != odd for line in lines(cluster, node_id, "members_differ")
    ]


def test_a_clock_far_off_is_a_warning_and_a_metric_and_nothing_else(cluster, tmp_path, monkeypatch):
    offset = tmp_path / "offset"
    offset.write_text(f"{OFFSET_S * 1000}\n")
    odd = a_follower(cluster)
    leading = cluster.leader()
    address = cluster.client_address(leading)
    monkeypatch.setenv(CLOCK_OFFSET_VARIABLE, str(offset))
    cluster.restart(odd)
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
    offset.write_text("0\n")
    until(lambda: abs(metrics(address)[CLOCK_METRIC, odd]) < 2, "the metric shows that it is over")
    assert len(lines(cluster, leading, "event=clocks_differ")) == 1
