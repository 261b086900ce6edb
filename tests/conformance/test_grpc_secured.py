"""RocketMQ 5's own clients, unmodified, sign and use TLS, through a proxy of a cluster with TLS and access control."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeClient
from grpc_clients import CLIENTS, GO, JAVA, LACKS, Program, only
from guarded_groups import APP, GUARDED, ROOT_ACCOUNT, STRANGER, issue_tls, make_accounts
from running_proxy import RunningProxy
from stock_clients import StockClient, StockClientError

from dledger_base.issuing import Authority
from dledger_client import AccessRule, AccountAdmin, Credentials, SyncAdmin, SyncPullConsumer, Tls
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long

PROXY = Credentials("proxy", "secret-of-proxy")
TOPIC = "Guarded5"
NUMBERS = count()
SECONDS = 60.0
VERIFYING = [name for name in CLIENTS if name not in (JAVA, GO)]
"""Clients that verify the proxy's certificate. Java's and Go's accept any."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured5")


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[LocalCluster]:
    """Start a cluster with TLS and access control, with a topic that one account may use."""
    own, trusted = issue_tls(folder)
    of_nodes, namesrv, of_namesrv = GUARDED.partition("[namesrv]\n")
    of_nodes += 'spoken_utc_offsets = "+08:00"\n'
    with LocalCluster(nodes=1, config=f"{own}{trusted}{of_nodes}{namesrv}{own}{of_namesrv}") as cluster:
        tls = Tls(folder / "ca.pem")
        make_accounts(cluster.namesrv, tls)
        with SyncAdmin(cluster.namesrv, credentials=ROOT_ACCOUNT, tls=tls) as admin:
            admin.create_topic(TOPIC, queues=2, attributes={"message.type": "MIXED"})
        asyncio.run(_grant(cluster.namesrv, tls))
        yield cluster


async def _grant(namesrv: str, tls: Tls) -> None:
    async with AccountAdmin(namesrv, ROOT_ACCOUNT, tls=tls) as admin:
        await admin.create(PROXY.access_key, PROXY.secret)
        for resource, right in (("Cluster:*", "Speak"), ("Topic:*", "Get"), ("Group:*", "Get")):
            await admin.grant(PROXY.access_key, AccessRule(resource, (right,)))
        await admin.grant(APP.access_key, AccessRule(f"Topic:{TOPIC}", ("Pub", "Sub", "Get")))


@pytest.fixture(scope="module")
def proxy(secured: LocalCluster, folder: Path) -> Iterator[RunningProxy]:
    account = folder / "proxy.account"
    account.write_text(f"{PROXY.access_key}\n{PROXY.secret}\n")
    account.chmod(0o600)
    config = (
        f'account_file = "{account}"\ncluster_tls = true\ncluster_ca_file = "{folder}/ca.pem"\ntls = "enforcing"\n'
        f'tls_cert_file = "{folder}/node.pem"\ntls_key_file = "{folder}/node-key.pem"\n'
    )
    with RunningProxy(folder / "proxy", secured.namesrv, config) as started:
        yield started


def trusting(authority: Path) -> dict[str, str]:
    """Return the environment in which a driver uses TLS and trusts an authority."""
    return {
        "DRIVER_TLS": "yes",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority),  # Python and Node
        "SSL_CERT_FILE": str(authority),  # Rust
        "SSL_CERT_DIR": "/nowhere",
    }


def bodies_stored(secured: LocalCluster, folder: Path) -> list[str]:
    """Return the bodies of all messages of the topic, up to the end of each queue."""
    access: dict[str, Any] = {"credentials": ROOT_ACCOUNT, "tls": Tls(folder / "ca.pem")}
    bodies: list[str] = []
    with (
        SyncAdmin(secured.namesrv, **access) as admin,
        SyncPullConsumer(secured.namesrv, "checker", **access) as consumer,
    ):
        queues = consumer.queues(TOPIC)
        ends = {queue: admin.end_offset(queue) for queue in queues}
        consumer.assign(queues)
        consumer.seek_to_begin()
        while any(consumer.positions[queue] < end for queue, end in ends.items()):
            bodies += [message.body.decode() for message in consumer.poll(1000, timeout=1.0)]
    return bodies


def receive(client: StockClient, name: str, wanted: str) -> None:
    """Receive and acknowledge until a message has come."""
    deadline = time.monotonic() + SECONDS
    while True:
        assert time.monotonic() < deadline, f"{wanted} did not come"
        for message in client.call("receive", name=name):
            client.call("ack", name=name, message=message["id"])
            if message["body"] == wanted:
                return


def test_a_client_that_signs_sends_and_receives_over_tls(
    grpc_program: Program, grpc_client: MakeClient, proxy: RunningProxy, folder: Path
) -> None:
    client = grpc_client(proxy.address, APP, **trusting(folder / "ca.pem"))
    body = f"signed by {grpc_program.client} {next(NUMBERS)}"
    simple, pushed = f"simple-{grpc_program.client}".replace(".", "-"), f"push-{grpc_program.client}".replace(".", "-")
    client.call("simple", name="simple", group=simple, topic=TOPIC)
    client.call("receive", name="simple")
    pushes = "push" not in LACKS.get(grpc_program.client, ())
    if pushes:
        client.call("push", name="push", group=pushed, topic=TOPIC)
    client.call("send", topic=TOPIC, body=body)
    receive(client, "simple", body)
    half = client.call("begin", topic=TOPIC, body=f"half of {body}")
    client.call("commit", message=half["message_id"])
    receive(client, "simple", f"half of {body}")
    if pushes:
        wanted = {body, f"half of {body}"}
        client.wait_for(lambda: set(client.bodies("push")) >= wanted, "not all came", timeout=SECONDS)


def test_a_client_may_sign_the_local_time_of_a_configured_time_zone(
    grpc_client: MakeClient, proxy: RunningProxy, folder: Path, secured: LocalCluster
) -> None:
    """Java's, Go's and Python's clients sign it as if it were UTC."""
    body = f"from Shanghai {next(NUMBERS)}"
    client = grpc_client(proxy.address, APP, **trusting(folder / "ca.pem"), TZ="Asia/Shanghai")
    client.call("send", topic=TOPIC, body=body)
    assert body in bodies_stored(secured, folder)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        (None, ""),
        (STRANGER, "has no permission to access Topic"),
        (Credentials("app", "another secret"), "check signature failed"),
        (Credentials("nobody", "a secret"), "User:nobody is not found"),
    ],
    ids=["no account", "no right", "another secret", "no such account"],
)
def test_a_refused_client_stores_nothing_and_sees_the_reason(
    grpc_client: MakeClient,
    proxy: RunningProxy,
    folder: Path,
    secured: LocalCluster,
    who: Credentials | None,
    words: str,
) -> None:
    client = grpc_client(proxy.address, who, **trusting(folder / "ca.pem"))
    body = f"never {next(NUMBERS)}"
    with pytest.raises(StockClientError) as refused:
        client.call("send", topic=TOPIC, body=body, timeout=SECONDS)
    assert words in f"{refused.value}{client.errors()}"
    assert body not in bodies_stored(secured, folder)


def test_a_client_without_tls_stores_nothing(
    grpc_client: MakeClient, proxy: RunningProxy, folder: Path, secured: LocalCluster
) -> None:
    body = f"never {next(NUMBERS)}"
    with pytest.raises(StockClientError):
        grpc_client(proxy.address, APP).call("send", topic=TOPIC, body=body, timeout=SECONDS / 2)
    assert body not in bodies_stored(secured, folder)


@only(*VERIFYING)
def test_a_client_that_trusts_another_authority_stores_nothing(
    grpc_client: MakeClient, proxy: RunningProxy, folder: Path, secured: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "other.pem").write_bytes(Authority("somebody else", timedelta(days=1)).certificate)
    body = f"never {next(NUMBERS)}"
    client = grpc_client(proxy.address, APP, **trusting(tmp_path / "other.pem"))
    with pytest.raises(StockClientError):
        client.call("send", topic=TOPIC, body=body, timeout=SECONDS / 2)
    assert body not in bodies_stored(secured, folder)
