"""`dledger up --proxy-port` starts a proxy beside the cluster, and the other commands know it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.errors import ImpossibleLayoutError
from dledger_client import SyncAdmin
from dledger_client.testing.ports import find_free_block
from tests.integration.commands import output, run

SECONDS = 120.0


def test_a_proxy_starts_stops_and_is_forgotten_with_its_cluster(tmp_path: Path) -> None:
    data, base = tmp_path / "data", find_free_block([*range(4), 90, 91])
    ports = ("--namesrv-port", base + 90, "--base-port", base)
    started = output("up", "--data", data, "--nodes", 1, *ports, "--proxy-port", base + 91, "--detach", timeout=SECONDS)
    try:
        assert f"proxy 127.0.0.1:{base + 91}" in started
        assert _proxy_of(data)["answers"] is True
        _check_what_clients_of_the_proxy_need(f"127.0.0.1:{base + 90}")
        assert "stopped" in output("node", "stop", "proxy", "--data", data)
        assert _proxy_of(data)["answers"] is False
        assert "started" in output("node", "start", "proxy", "--data", data, "--detach")
    finally:
        stopped = output("down", "--data", data, timeout=SECONDS)
    assert "proxy" in stopped
    assert json.loads((data / "cluster.json").read_text())["proxy_port"] == base + 91


def _check_what_clients_of_the_proxy_need(namesrv: str) -> None:
    output("topic", "create", "later", "--type", "delay", "--namesrv", namesrv)
    output("group", "create", "in-order", "--ordered", "--namesrv", namesrv)
    with SyncAdmin(namesrv) as admin:
        assert admin.topic_config("later")["broker-a"].attributes == {"message.type": "DELAY"}
        assert admin.groups()["in-order"].consume_message_orderly


def _proxy_of(data: Path) -> dict[str, object]:
    done = run("status", "--data", data, "-o", "json")
    (proxy,) = [one for one in json.loads(done.stdout)["processes"] if one["name"] == "proxy"]
    return proxy


def test_a_proxy_of_a_secured_cluster_needs_an_account_of_its_own(tmp_path: Path) -> None:
    base = find_free_block([*range(4), 90, 91])
    ports = ("--namesrv-port", base + 90, "--base-port", base, "--proxy-port", base + 91)
    error = output("up", "--data", tmp_path / "data", "--nodes", 1, *ports, "--secure", "--detach", code=1)
    assert "make an account for the proxy with the right Speak" in error
    assert not (tmp_path / "data" / "cluster.json").exists()


@pytest.mark.parametrize("port", [-1, 70_000, 9876, 10_912])
def test_a_port_of_the_proxy_that_is_impossible_or_anothers_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ImpossibleLayoutError, match=f"--proxy-port {port}"):
        ClusterLayout(tmp_path, proxy_port=port)


def test_keys_of_the_proxy_stand_in_their_own_table(tmp_path: Path) -> None:
    file, base = tmp_path / "keys.toml", find_free_block([*range(4), 90, 91])
    ports = ("--namesrv-port", base + 90, "--base-port", base, "--proxy-port", base + 91)
    for text, expected in (
        ("[proxy]\nmax_requests = 0\n", "configuration of the proxy: max_requests = 0"),
        ("[proxy]\ngrpc_port = 1\n", "grpc_port = 1 cannot be set here, it follows from --proxy-port"),
    ):
        file.write_text(text)
        command = ("up", "--data", tmp_path / "data", *ports, "--config", file, "--detach")
        assert expected in output(*command, code=1)
