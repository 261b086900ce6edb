"""Apache's Java clients, unmodified, on a group that speaks TLS alone: to clients, to name servers, between nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import rows
from cluster_checks import bodies_of
from stock_clients import JAVA_CLIENTS, StockClientError

from dledger_client import SyncAdmin, SyncPullConsumer, Tls
from dledger_client.testing import LocalCluster
from dledger_serving.issuing import Authority

pytestmark = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)
PLAIN: Mapping[str, str] = {}

_NUMBERS = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates: of nodes and of clients, and of an authority that nobody trusts."""
    made = tmp_path_factory.mktemp("tls")
    authority = Authority("a test", timedelta(days=1))
    (made / "ca.pem").write_bytes(authority.certificate)
    (made / "other.pem").write_bytes(Authority("somebody else", timedelta(days=1)).certificate)
    for name in ("node", "client"):
        authority.issue(name, ["127.0.0.1"]).write(made / f"{name}.pem", made / f"{name}-key.pem")
    return made


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[LocalCluster]:
    own = f'tls = "enforcing"\ntls_cert_file = "{folder}/node.pem"\ntls_key_file = "{folder}/node-key.pem"\n'
    asking = f'tls_client_certs = "required"\ntls_client_ca_file = "{folder}/ca.pem"\n'
    trusted = f'tls_namesrv_ca_file = "{folder}/ca.pem"\ntls_peer_ca_file = "{folder}/ca.pem"\n'
    aliases = "write_aliases = true\n"
    with LocalCluster(config=f"{own}{asking}{trusted}{aliases}[namesrv]\n{own}") as cluster:
        yield cluster


def java(folder: Path, *, authority: str = "ca.pem", certificate: str = "client") -> dict[str, str]:
    """Settings of a client that checks whom it speaks to, and shows a certificate."""
    return {
        "tls.enable": "true",
        "tls.test.mode.enable": "false",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": str(folder / authority),
        "tls.client.certPath": str(folder / f"{certificate}.pem"),
        "tls.client.keyPath": str(folder / f"{certificate}-key.pem"),
    }


@pytest.fixture
def ours(folder: Path) -> Tls:
    return Tls(folder / "ca.pem", folder / "client.pem", folder / "client-key.pem")


@pytest.fixture
def topic(secured: LocalCluster, ours: Tls) -> str:
    name = f"Tls{next(_NUMBERS)}"
    with SyncAdmin(secured.namesrv, tls=ours) as admin:
        admin.create_topic(name, queues=2)
    return name


def stored(secured: LocalCluster, ours: Tls, topic: str) -> list[str]:
    with SyncPullConsumer(secured.namesrv, "checker", tls=ours) as consumer:
        consumer.assign(consumer.queues(topic))
        consumer.seek_to_begin()
        return bodies_of(consumer.poll(100, timeout=5.0))


def test_it_sends_and_receives_over_tls(secured, apache, folder, ours, topic) -> None:
    client = apache(secured.namesrv, java(folder))
    assert rows.send(client, topic=topic, body="over tls")["status"] == "SEND_OK"
    client.call("push", name="reader", group=f"G-{topic}", topic=topic)
    client.wait_for(lambda: "over tls" in client.bodies("reader"), "the message")
    assert set(stored(secured, ours, topic)) == {"over tls"}


def test_it_goes_on_when_the_leader_is_killed_for_write_aliases_speak_tls_too(secured, apache, folder, topic) -> None:
    client = apache(secured.namesrv, java(folder))
    assert rows.send(client, topic=topic, body="before")["status"] == "SEND_OK"
    killed = secured.kill_leader()
    secured.leader()
    assert rows.send(client, topic=topic, body="after")["status"] == "SEND_OK"
    secured.restart(killed)
    secured.wait_ready()


@pytest.mark.parametrize("settings", ["none", "another authority"])
def test_it_is_refused_without_tls_and_refuses_who_it_does_not_trust(
    secured, apache, folder, ours, topic, settings
) -> None:
    said = PLAIN if settings == "none" else java(folder, authority="other.pem")
    with pytest.raises(StockClientError):
        apache(secured.namesrv, said).call("send", topic=topic, body="never")
    assert stored(secured, ours, topic) == []


def test_refusals_are_counted_and_logged(secured, apache) -> None:
    with pytest.raises(StockClientError):
        apache(secured.namesrv).call("send", topic="Any", body="never")
    log = (secured.data_dir / "namesrv" / "log").glob("*")
    assert any("it speaks without TLS" in file.read_text() for file in log)
