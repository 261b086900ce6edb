"""`dledger up --proxy-port` starts a proxy beside the cluster, and the other commands know it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import ssl
from pathlib import Path

import pytest

from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.errors import ImpossibleLayoutError
from dledger_client import AccessRule, AccountAdmin, Admin, Credentials, SyncAdmin, Tls
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


@pytest.mark.long
def test_a_proxy_of_a_secured_cluster_serves_accounts_over_tls_at_both_ports_also_after_a_restart(
    tmp_path: Path,
) -> None:
    data, base = tmp_path / "data", find_free_block([*range(4), 90, 91, 92])
    ports = ("--namesrv-port", base + 90, "--base-port", base)
    ports_of_proxy = ("--proxy-port", base + 91, "--proxy-http-port", base + 92)
    secure = data / "secure"
    try:
        started = output(
            "up", "--data", data, "--nodes", 1, *ports, *ports_of_proxy, "--secure", "--detach", timeout=SECONDS
        )
        assert f"proxy 127.0.0.1:{base + 91}, HTTP at 127.0.0.1:{base + 92}" in started
        assert (secure / "proxy.account").stat().st_mode & 0o777 == 0o600
        name, secret = (secure / "credentials").read_text().split()
        tls, root = Tls(secure / "ca.pem"), Credentials(name, secret)
        asyncio.run(_make_application(f"127.0.0.1:{base + 90}", root, tls))
        _send_over_http(base + 92, secure)
        output("down", "--data", data, timeout=SECONDS)
        output("up", "--data", data, "--detach", timeout=SECONDS)
        _send_over_http(base + 92, secure)
        assert _proxy_of(data)["answers"] is True
    finally:
        output("down", "--data", data, timeout=SECONDS)


async def _make_application(namesrv: str, root: Credentials, tls: Tls) -> None:
    async with Admin(namesrv, credentials=root, tls=tls) as admin, AccountAdmin(namesrv, root, tls=tls) as accounts:
        await admin.create_topic("orders", queues=1)
        await accounts.create("app", "app-secret")
        await accounts.grant("app", AccessRule("Topic:orders", ("Pub",)))


def _send_over_http(port: int, secure: Path) -> None:
    """Send as an application: if the proxy might not speak for it, the broker would refuse."""
    credentials = base64.b64encode(b"app:app-secret").decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {credentials}"}
    context = ssl.create_default_context(cafile=secure / "ca.pem")
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=SECONDS, context=context)
    connection.request("POST", "/v1/topics/orders/messages", json.dumps({"text": "hello"}), headers)
    answer = connection.getresponse()
    assert answer.status == http.HTTPStatus.OK, answer.read()
    connection.close()


@pytest.mark.parametrize("port", [-1, 70_000, 9876, 10_912])
def test_a_port_of_the_proxy_that_is_impossible_or_anothers_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ImpossibleLayoutError, match=f"--proxy-port {port}"):
        ClusterLayout(tmp_path, proxy_port=port)
    with pytest.raises(ImpossibleLayoutError, match=f"--proxy-http-port {port}"):
        ClusterLayout(tmp_path, proxy_port=8081, proxy_http_port=port)


def test_a_port_for_http_without_a_proxy_or_on_the_proxys_own_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImpossibleLayoutError, match="--proxy-port, too"):
        ClusterLayout(tmp_path, proxy_http_port=8082)
    with pytest.raises(ImpossibleLayoutError, match="--proxy-port 8081 is also the HTTP port of the proxy"):
        ClusterLayout(tmp_path, proxy_port=8081, proxy_http_port=8081)


def test_keys_of_the_proxy_stand_in_their_own_table(tmp_path: Path) -> None:
    file, base = tmp_path / "keys.toml", find_free_block([*range(4), 90, 91])
    ports = ("--namesrv-port", base + 90, "--base-port", base, "--proxy-port", base + 91)
    for text, expected in (
        ("[proxy]\nmax_requests = 0\n", "configuration of the proxy: max_requests = 0"),
        ("[proxy]\ngrpc_port = 1\n", "grpc_port = 1 cannot be set here, it follows from --proxy-port"),
        ("[proxy]\nhttp_port = 1\n", "http_port = 1 cannot be set here, it follows from --proxy-http-port"),
    ):
        file.write_text(text)
        command = ("up", "--data", tmp_path / "data", *ports, "--config", file, "--detach")
        assert expected in output(*command, code=1)
