"""A client with `tls=` speaks TLS with name servers and brokers. Each mistake is reported in one line that names it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from dledger.testing.ports import free_ports
from dledger_base.issuing import Authority, Issued
from dledger_broker.config import build_config
from dledger_broker.node import Broker
from dledger_client import Admin, ClientError, InvalidArgumentError, Producer, Tls, TlsError
from dledger_client.cluster.pool import ConnectionPool
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.server import NameServer

AUTHORITY = Authority("a test", timedelta(days=1))
DEADLINE_S = 60.0


class Cluster:
    """A name server and a node in this process. `tls` is the client's setting for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tls = Tls(folder / "ca.pem")
        (folder / "ca.pem").write_bytes(AUTHORITY.certificate)
        self.write("node", AUTHORITY.issue("127.0.0.1", ["127.0.0.1"]))
        self.name_server: NameServer
        self.broker: Broker

    def write(self, name: str, issued: Issued) -> None:
        issued.write(self.folder / f"{name}.pem", self.folder / f"{name}-key.pem")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.name_server.port}"

    @asynccontextmanager
    async def running(self, *, tls: str = "enforcing", namesrv_tls: bool = True, **keys: str) -> AsyncIterator[None]:
        certificate, key = self.folder / "node.pem", self.folder / "node-key.pem"
        self.name_server = NameServer(
            NameServerConfig(port=0, data=self.folder / "ns", tls=tls, tls_cert_file=certificate, tls_key_file=key)
        )
        await self.name_server.start()
        port, peer_port = free_ports(2)
        trusted = {"tls_namesrv_ca_file": str(self.folder / "ca.pem")} if namesrv_tls else {}
        config = {
            "broker_group": "g",
            "node_id": "g-n0",
            "data_dir": str(self.folder / "data"),
            "segment_bytes": 1 << 20,
            "port": port,
            "peer_port": peer_port,
            "http_port": 0,
            "alias_port": 0,
            "namesrv": [self.address],
            "tls": tls,
            "tls_cert_file": str(certificate),
            "tls_key_file": str(key),
            **trusted,
            "drain_ms": 0,
            "election_min_ms": 100,
            "election_max_ms": 150,
            "heartbeat_ms": 20,
            **keys,
        }
        self.broker = Broker(build_config(config), bootstrap=True)
        try:
            await self.broker.start()
            yield
        finally:
            await self.broker.stop()
            await self.name_server.stop()

    async def refuses(self, tls: Tls | None, words: str) -> None:
        """Check that a client with these settings gets an error with these words."""
        with pytest.raises(TlsError if tls else ClientError, match=words):
            async with Admin(self.address, timeout=DEADLINE_S, tls=tls) as admin:
                await admin.topics()

    async def introduced(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.broker.is_introduced:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def test_broker_and_client_speak_tls_alone_with_name_servers_and_each_other(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.introduced()
        async with Admin(cluster.address, tls=cluster.tls) as admin:
            await admin.create_topic("T")
        async with Producer(cluster.address, group="P", tls=cluster.tls) as producer:
            sent = await producer.send("T", b"x" * 100_000)
        assert sent.queue_offset == 0
        assert cluster.broker.counters()["tls_handshakes"] >= 2
        assert cluster.name_server.door_counters.refused_plain == 0


async def test_a_plain_client_is_told_that_it_has_to_speak_tls(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.refuses(None, "a TLS server answered there; if it is one, this client has to speak TLS")


async def test_a_tls_client_at_a_plain_port_gets_a_clear_error(cluster: Cluster) -> None:
    words = r"it does not speak TLS, or only versions before 1\.2"
    async with cluster.running(tls="off", namesrv_tls=False):
        await cluster.refuses(cluster.tls, words)
        pool = ConnectionPool(lambda *_: None, tls=cluster.tls)
        with pytest.raises(TlsError, match=words):
            await pool.get(str(cluster.broker.config.advertised), asyncio.get_running_loop().time() + DEADLINE_S)


async def test_a_certificate_of_another_authority_is_refused_with_the_reason(cluster: Cluster) -> None:
    (cluster.folder / "other.pem").write_bytes(Authority("other", timedelta(days=1)).certificate)
    async with cluster.running():
        words = "its certificate is refused here: unable to get local issuer certificate"
        await cluster.refuses(Tls(cluster.folder / "other.pem"), words)


async def test_a_certificate_for_another_host_is_refused_unless_names_are_not_compared(cluster: Cluster) -> None:
    cluster.write("node", AUTHORITY.issue("elsewhere", ["elsewhere.example"]))
    async with cluster.running(tls_check_names=False):
        await cluster.introduced()
        await cluster.refuses(cluster.tls, r"IP address mismatch, certificate is not valid for '127\.0\.0\.1'")
        async with Admin(cluster.address, tls=Tls(cluster.folder / "ca.pem", check_names=False)) as admin:
            await admin.topics()


async def test_a_client_shows_its_certificate(cluster: Cluster) -> None:
    cluster.write("client", AUTHORITY.issue("client", []))
    asking = {"tls_client_certs": "required", "tls_client_ca_file": str(cluster.folder / "ca.pem")}
    async with cluster.running(**asking):
        await cluster.introduced()
        shown = Tls(cluster.folder / "ca.pem", cluster.folder / "client.pem", cluster.folder / "client-key.pem")
        async with Producer(cluster.address, group="P", tls=shown) as producer:
            assert (await producer.send("T", b"x")).queue_offset == 0
        with pytest.raises(ClientError):
            async with Producer(cluster.address, group="P", tls=cluster.tls) as producer:
                await producer.send("T", b"x", timeout=1.0)


async def test_a_broker_says_that_its_name_server_wants_tls(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with cluster.running(namesrv_tls=False):
        async with asyncio.timeout(DEADLINE_S):
            while "if it is one, tls_namesrv_ca_file is missing" not in caplog.text:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)


async def test_a_new_authority_is_trusted_by_a_client_that_runs(cluster: Cluster) -> None:
    (cluster.folder / "ca.pem").write_bytes(Authority("other", timedelta(days=1)).certificate)
    async with cluster.running(tls_check_names=False, namesrv_tls=False, tls="permissive"):
        await cluster.introduced()
        async with Admin(cluster.address, timeout=DEADLINE_S, tls=cluster.tls) as admin:
            with pytest.raises(TlsError, match="its certificate is refused here"):
                await admin.topics()
            (cluster.folder / "ca.pem").write_bytes(AUTHORITY.certificate)
            await admin.topics()


async def test_files_that_cannot_be_used_are_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"tls: ca_file .*absent\.pem cannot be read"):
        await Admin("127.0.0.1:1", tls=Tls(tmp_path / "absent.pem")).start()


def test_tls_without_a_named_authority_still_verifies_certificates() -> None:
    assert Tls().context().context.verify_mode is ssl.CERT_REQUIRED
