"""The ports for clients speak TLS if the configuration says so, and each mistake has a line that names it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from broker_group import BrokerGroup, running
from broker_in_process import Client, node_config

from dledger.config_keys.declared import ConfigValue
from dledger.config_keys.properties import read_properties
from dledger.testing.ports import free_ports
from dledger_broker.config import build_config
from dledger_broker.errors import ConfigError
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode
from dledger_serving.issuing import Authority

AUTHORITY = Authority("a test", timedelta(days=1))


class TlsClient(Client):
    @classmethod
    async def connect(cls, port: int) -> Client:
        context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))


@asynccontextmanager
async def leading(tmp_path: Path, **keys: ConfigValue) -> AsyncIterator[Broker]:
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    files = {"tls_cert_file": str(tmp_path / "cert.pem"), "tls_key_file": str(tmp_path / "key.pem")}
    broker = Broker(node_config(tmp_path, **files, **keys), bootstrap=True)
    await broker.start()
    try:
        async with asyncio.timeout(60):
            while not broker.group.ready:  # noqa: ASYNC110 - nobody is told
                await asyncio.sleep(0.01)
            yield broker
    finally:
        await broker.stop()


@pytest.mark.parametrize("tls", ["permissive", "enforcing"])
async def test_both_ports_for_clients_speak_tls(tmp_path: Path, tls: str) -> None:
    async with leading(tmp_path, tls=tls, alias_port=free_ports(1)[0]) as broker:
        for port in (broker.config.port, broker.config.alias_port):
            client = await TlsClient.connect(port)
            assert (await client.send(b"x" * 60_000)).code == 0
            client.close()
        assert broker.counters()["tls_handshakes"] == 2
        assert {"tls_certificate_ends_seconds"} <= {gauge.name for gauge in broker.gauges() if gauge.read()}


async def test_a_permissive_port_takes_plain_clients_too(tmp_path: Path) -> None:
    async with leading(tmp_path, tls="permissive") as broker:
        client = await Client.connect(broker.config.port)
        assert (await client.send(b"x")).code == 0
        assert broker.counters()["tls_handshakes"] == 0


async def test_an_enforcing_port_says_why_a_plain_client_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with leading(tmp_path, tls="enforcing") as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.config.port)
        Client(reader, writer).tell(RequestCode.GET_BROKER_RUNTIME_INFO, {})
        assert (await reader.read())[:2] == b"\x15\x03"
        assert broker.counters()["tls_refused_plain"] == 1
    assert "it speaks without TLS" in caplog.text


async def test_a_plain_port_says_why_a_tls_client_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with leading(tmp_path) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await TlsClient.connect(broker.config.port)
    assert "it speaks TLS, which is off on this port" in caplog.text


async def test_limits_of_connections_hold_for_tls(tmp_path: Path) -> None:
    async with leading(tmp_path, tls="enforcing", max_connections=1) as broker:
        first = await TlsClient.connect(broker.config.port)
        assert (await first.send(b"x")).code == 0
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await (await TlsClient.connect(broker.config.port)).send(b"y")
        assert (await first.send(b"x")).code == 0
        assert broker.counters()["max_connections"] == 1


async def test_the_http_port_speaks_tls_alone_if_it_is_told_to(tmp_path: Path) -> None:
    async with leading(tmp_path, tls_http=True, http_port=free_ports(1)[0]) as broker:
        port = broker.config.http_port
        context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read()).endswith(b"ok")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        with suppress(ConnectionError):
            assert not (await reader.read()).startswith(b"HTTP")
        writer.close()


@pytest.mark.parametrize("has_secret", [True, False])
async def test_nodes_speak_tls_to_each_other_with_the_secret_or_instead_of_it(tmp_path: Path, has_secret: bool) -> None:
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate)
    named = {"cert": "tls_cert_file", "key": "tls_key_file", "ca": "tls_peer_ca_file"}
    files = {key: str(tmp_path / f"{name}.pem") for name, key in named.items()}
    async with running(BrokerGroup(tmp_path, has_secret=has_secret, forward_hold_ms=60_000, **files)) as group:
        follower = (await group.followers())[0]
        client = await Client.connect(follower.config.port)
        assert (await client.send(b"x" * 60_000)).code == 0
        stranger = await asyncio.open_connection("127.0.0.1", follower.config.peer_port)
        stranger[1].write(b"x" * 64)
        with suppress(ConnectionError):
            assert (await stranger[0].read())[:1] in (b"", b"\x15"), "an alert, or nothing, and no challenge"
        stranger[1].close()


def test_a_node_needs_a_certificate_for_its_peers_or_a_secret(tmp_path: Path) -> None:
    peers = {"n1": {"address": "127.0.0.1:1"}}
    with pytest.raises(ConfigError, match="tls_cert_file is missing while tls_peer_ca_file is set"):
        node_config(tmp_path, tls_peer_ca_file="ca.pem", peers=peers)
    with pytest.raises(ConfigError, match="secret_file is missing while peers lists n1"):
        node_config(tmp_path, peers=peers)
    assert node_config(tmp_path, tls_peer_ca_file="ca.pem", tls_cert_file="cert.pem", peers=peers).secret_file is None


def test_keys_of_tls_need_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tls_cert_file is missing while tls = 'permissive'"):
        node_config(tmp_path, tls="permissive")
    with pytest.raises(ConfigError, match="tls_cert_file is missing while tls_http = true"):
        node_config(tmp_path, tls_http=True)
    with pytest.raises(ConfigError, match="tls_client_ca_file is missing while tls_client_certs = 'required'"):
        node_config(tmp_path, tls_client_certs="required")


def test_rocketmq_names_are_understood(tmp_path: Path) -> None:
    said = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": "/a/cert.pem",
        "tls.server.keyPath": "/a/key.pem",
        "tls.server.trustCertPath": "/a/ca.pem",
        "tls.server.need.client.auth": "require",
    }
    table = read_properties("\n".join(f"{name} = {value}" for name, value in said.items()))
    config = build_config({**table, "broker_group": "g", "node_id": "g-n0", "data_dir": str(tmp_path)})
    assert (config.tls, config.tls_client_certs) == ("enforcing", "required")
    assert [str(path) for path in (config.tls_cert_file, config.tls_key_file, config.tls_client_ca_file)] == [
        "/a/cert.pem",
        "/a/key.pem",
        "/a/ca.pem",
    ]


async def test_a_certificate_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    (tmp_path / "bad.pem").chmod(0o600)
    with pytest.raises(ConfigError, match=r"tls_cert_file .*bad\.pem .* cannot be used"):
        await Broker(node_config(tmp_path, tls="enforcing", tls_cert_file=str(tmp_path / "bad.pem"))).start()


def test_certificates_of_clients_are_not_required_where_plain_ones_come_in(tmp_path: Path) -> None:
    keys = {"tls": "permissive", "tls_cert_file": "cert.pem", "tls_client_ca_file": "ca.pem"}
    with pytest.raises(ConfigError, match="'required' keeps nobody out while tls = 'permissive'"):
        node_config(tmp_path, **keys, tls_client_certs="required")
    assert node_config(tmp_path, **keys, tls_client_certs="optional").tls_client_certs == "optional"
