"""The ports for clients speak TLS if the configuration says so, and a line in the log names each mistake."""

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
from broker_in_process import running as running_node

from dledger.testing.ports import free_ports
from dledger_base.config_keys.declared import ConfigValue
from dledger_base.config_keys.origins import read_properties
from dledger_base.issuing import Authority
from dledger_broker.config import build_config
from dledger_broker.errors import ConfigError
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode

AUTHORITY = Authority("a test", timedelta(days=1))
CERTIFICATE_KEYS = {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem"}


class TlsClient(Client):
    @classmethod
    async def connect(cls, port: int) -> Client:
        context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context))


def certificate(tmp_path: Path, **more: str) -> dict[str, str]:
    """Write the files of a certificate, and return the configuration keys that name them."""
    AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate)
    return {key: str(tmp_path / name) for key, name in {**CERTIFICATE_KEYS, **more}.items()}


@asynccontextmanager
async def leading(tmp_path: Path, **keys: ConfigValue) -> AsyncIterator[Broker]:
    async with running_node(node_config(tmp_path, **certificate(tmp_path), **keys), bootstrap=True) as broker:
        yield broker


@pytest.mark.parametrize("tls", ["permissive", "enforcing"])
async def test_both_ports_for_clients_speak_tls_and_a_permissive_one_accepts_plain_clients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, tls: str
) -> None:
    async with leading(tmp_path, tls=tls, alias_port=free_ports(1)[0]) as broker:
        for port in (broker.config.port, broker.config.alias_port):
            client = await TlsClient.connect(port)
            assert (await client.send(b"x" * 60_000)).code == 0
            client.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.config.port)
        plain = Client(reader, writer)
        if tls == "permissive":
            assert (await plain.send(b"x")).code == 0
        else:
            plain.tell(RequestCode.GET_BROKER_RUNTIME_INFO, {})
            assert (await reader.read())[:2] == b"\x15\x03"
        assert broker.counters()["tls_handshakes"] == 2
        assert broker.counters()["tls_refused_plain"] == (tls == "enforcing")
        assert {"tls_certificate_ends_seconds"} <= {gauge.name for gauge in broker.gauges() if gauge.read()}
    assert ("it speaks without TLS" in caplog.text) == (tls == "enforcing")


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


async def test_the_http_port_speaks_only_tls_if_tls_http_is_set(tmp_path: Path) -> None:
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
async def test_nodes_speak_tls_to_each_other_with_or_without_a_secret(tmp_path: Path, has_secret: bool) -> None:
    files = certificate(tmp_path, tls_peer_ca_file="ca.pem")
    async with running(BrokerGroup(tmp_path, has_secret=has_secret, forward_hold_ms=60_000, **files)) as group:
        follower = (await group.followers())[0]
        client = await Client.connect(follower.config.port)
        assert (await client.send(b"x" * 60_000)).code == 0
        stranger = await asyncio.open_connection("127.0.0.1", follower.config.peer_port)
        stranger[1].write(b"x" * 64)
        with suppress(ConnectionError):
            assert (await stranger[0].read())[:1] in (b"", b"\x15"), "an alert, or nothing, and no challenge"
        stranger[1].close()


PEERS: dict[str, ConfigValue] = {"peers": {"n1": {"address": "127.0.0.1:1"}}}
PERMISSIVE: dict[str, ConfigValue] = {"tls": "permissive", "tls_cert_file": "cert.pem", "tls_client_ca_file": "ca.pem"}


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({**PEERS, "tls_peer_ca_file": "ca.pem"}, "tls_cert_file is missing while tls_peer_ca_file is set"),
        (PEERS, "secret_file is missing while peers lists n1"),
        ({"tls": "permissive"}, "tls_cert_file is missing while tls = 'permissive'"),
        ({"tls_http": True}, "tls_cert_file is missing while tls_http = true"),
        ({"tls_client_certs": "required"}, "tls_client_ca_file is missing while tls_client_certs = 'required'"),
        ({**PERMISSIVE, "tls_client_certs": "required"}, "'required' keeps nobody out while tls = 'permissive'"),
    ],
)
def test_keys_of_tls_need_each_other_and_permissive_ports_cannot_require_certificates(
    tmp_path: Path, keys: dict[str, ConfigValue], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        node_config(tmp_path, **keys)
    alone = node_config(tmp_path, **PEERS, tls_peer_ca_file="ca.pem", tls_cert_file="cert.pem")
    assert alone.secret_file is None, "a certificate for the peers is enough"
    assert node_config(tmp_path, **PERMISSIVE, tls_client_certs="optional").tls_client_certs == "optional"


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
    files = (config.tls_cert_file, config.tls_key_file, config.tls_client_ca_file)
    assert [str(path) for path in files] == ["/a/cert.pem", "/a/key.pem", "/a/ca.pem"]


async def test_a_certificate_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    (tmp_path / "bad.pem").chmod(0o600)
    with pytest.raises(ConfigError, match=r"tls_cert_file .*bad\.pem .* cannot be used"):
        await Broker(node_config(tmp_path, tls="enforcing", tls_cert_file=str(tmp_path / "bad.pem"))).start()
