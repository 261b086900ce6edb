"""Apache's Java clients, unmodified, on a group that speaks only TLS to clients, name servers and peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import rows
from cluster_checks import bodies_of
from guarded_groups import issue_tls
from stock_clients import JAVA_CLIENTS, StockClientError

from dledger_base.issuing import Authority
from dledger_client import SyncAdmin, SyncPullConsumer, Tls
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.parametrize("program", JAVA_CLIENTS, indirect=True)
PLAIN: Mapping[str, str] = {}

_NUMBERS = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for certificates, with that of an authority that nobody trusts."""
    made = tmp_path_factory.mktemp("tls")
    (made / "other.pem").write_bytes(Authority("somebody else", timedelta(days=1)).certificate)
    return made


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[LocalCluster]:
    own, trusted = issue_tls(folder, "client")
    asking = f'tls_client_certs = "required"\ntls_client_ca_file = "{folder}/ca.pem"\n'
    aliases = "write_aliases = true\n"
    with LocalCluster(config=f"{own}{asking}{trusted}{aliases}[namesrv]\n{own}") as cluster:
        yield cluster


def java(folder: Path, *, authority: str = "ca.pem", certificate: str = "client") -> dict[str, str]:
    """Return the settings of a client that verifies the server and shows a certificate."""
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


def test_the_client_sends_and_receives_over_tls(secured, apache, folder, ours, topic) -> None:
    client = apache(secured.namesrv, java(folder))
    assert rows.send(client, topic=topic, body="over tls")["status"] == "SEND_OK"
    client.call("push", name="reader", group=f"G-{topic}", topic=topic)
    client.wait_for(lambda: "over tls" in client.bodies("reader"), "the message")
    assert set(stored(secured, ours, topic)) == {"over tls"}


def test_a_tls_client_sends_through_a_write_alias_after_a_leader_kill(secured, apache, folder, topic) -> None:
    client = apache(secured.namesrv, java(folder))
    assert rows.send(client, topic=topic, body="before")["status"] == "SEND_OK"
    killed = secured.kill_leader()
    secured.leader()
    assert rows.send(client, topic=topic, body="after")["status"] == "SEND_OK"
    secured.restart(killed)
    secured.wait_ready()


@pytest.mark.parametrize("settings", ["none", "another authority"])
def test_clients_without_tls_or_trust_in_the_server_store_nothing(
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
