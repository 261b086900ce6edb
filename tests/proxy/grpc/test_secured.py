"""A proxy of a secured cluster: clients sign and use TLS, brokers judge their signatures and rights, nobody else's."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest
from conftest import GrpcClient, consumer_settings, named, telling
from grpclib.client import Channel

from dledger_client import AccessRule, AccountAdmin, Admin, Credentials, Tls
from dledger_client.testing.ports import find_free_block
from dledger_proxy.grpc.definition import messaging_pb2 as pb
from dledger_remoting.speech import format_date, sign_text
from tests.integration.commands import run

SECONDS = 120.0
PROXY_RULES = (
    AccessRule("Cluster:*", ("Speak",)),
    AccessRule("Topic:*", ("Get",)),
    AccessRule("Group:*", ("Get",)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Start a secured cluster with a topic, an account for the proxy, and one for an application."""
    data = tmp_path_factory.mktemp("secured") / "data"
    base = find_free_block([*range(4), 90])
    ports = ("--namesrv-port", str(base + 90), "--base-port", str(base))
    up = run("up", "--data", str(data), "--nodes", "1", *ports, "--secure", "--detach", timeout=SECONDS)
    try:
        assert up.returncode == 0, up.stderr
        (data / "secure" / "namesrv").write_text(f"127.0.0.1:{base + 90}")
        asyncio.run(_make_accounts(data / "secure"))
        yield data / "secure"
    finally:
        run("down", "--data", str(data), timeout=SECONDS)


def _root(folder: Path) -> dict[str, object]:
    name, secret = (folder / "credentials").read_text().split()
    return {"credentials": Credentials(name, secret), "tls": Tls(folder / "ca.pem")}


async def _make_accounts(folder: Path) -> None:
    namesrv, root = (folder / "namesrv").read_text(), _root(folder)
    async with Admin(namesrv, **root) as admin, AccountAdmin(namesrv, **root) as accounts:
        await admin.create_topic("orders", queues=1)
        await admin.create_topic("secret", queues=1)
        for name in ("proxy", "app"):
            await accounts.create(name, f"{name}-secret")
        for rule in PROXY_RULES:
            await accounts.grant("proxy", rule)
        await accounts.grant("app", AccessRule("Topic:orders", ("Pub", "Sub")))
        await accounts.grant("app", AccessRule("Group:readers", ("Sub",)))
    (folder / "proxy.account").write_text("proxy\nproxy-secret\n")
    (folder / "proxy.account").chmod(0o600)


@pytest.fixture
async def proxy(start_proxy, folder):
    return await start_proxy(
        (folder / "namesrv").read_text(),
        account_file=folder / "proxy.account",
        cluster_tls=True,
        cluster_ca_file=folder / "ca.pem",
        tls="permissive",
        tls_cert_file=folder / "node.pem",
        tls_key_file=folder / "node-key.pem",
    )


def signed_by(account: str, secret: str, *, age_s: float = 0.0, upper: bool = False) -> dict[str, str]:
    date = format_date(time.time() - age_s)
    signature = sign_text(secret, date)
    signature = signature.upper() if upper else signature
    credential = f"{account}/cn/RocketMQ" if upper else account
    return {
        "x-mq-date-time": date,
        "authorization": f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={signature}",
    }


def send(client):
    return client.send("orders", message_id=f"id-{time.monotonic_ns()}")


async def test_a_client_that_signs_sends_and_receives_over_tls(proxy, folder):
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.set_alpn_protocols(["h2"])
    client = GrpcClient(proxy.port.address, "secure-client", **signed_by("app", "app-secret", upper=True))
    client.channel.close()
    client.channel = Channel(*proxy.port.address, ssl=context)
    try:
        await client.receive("orders", "readers", wait_s=0)
        assert (await send(client)).status.code == pb.OK
        (message,) = await client.receive("orders", "readers")
        assert (await client.ack("orders", "readers", message)).status.code == pb.OK
    finally:
        client.channel.close()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        signed_by("app", "wrong"),
        signed_by("nobody", "app-secret"),
        signed_by("app", "app-secret", age_s=3_600),
        {"authorization": "MQv2-HMAC-SHA1 nonsense"},
        {"authorization": "Basic YTpi"},
    ],
    ids=["unsigned", "wrong secret", "unknown account", "too old", "unreadable", "another scheme"],
)
async def test_a_client_without_a_good_signature_may_do_nothing(proxy, connect, headers):
    client = connect(proxy, **headers)
    assert (await send(client)).status.code in (pb.FORBIDDEN, pb.UNAUTHORIZED)
    (answer,) = await client.receive_all("orders", "readers", wait_s=0)
    assert answer.status.code in (pb.FORBIDDEN, pb.UNAUTHORIZED)


async def test_a_client_has_its_own_rights_and_not_the_proxys(proxy, connect):
    client = connect(proxy, **signed_by("app", "app-secret"))
    assert (await send(client)).status.code == pb.OK
    assert (await client.send("secret")).status.code == pb.FORBIDDEN
    (answer,) = await client.receive_all("orders", "strangers", wait_s=0)
    assert answer.status.code == pb.FORBIDDEN


async def test_acknowledgements_are_judged_too(proxy, connect):
    client = connect(proxy, **signed_by("app", "app-secret"))
    await send(client)
    (message, *_) = await client.receive("orders", "readers")
    thief = connect(proxy)
    assert (await thief.ack("orders", "readers", message)).status.code == pb.FORBIDDEN
    assert (await client.ack("orders", "readers", message)).status.code == pb.OK


async def test_a_signed_client_is_registered_and_an_unsigned_one_is_not(proxy, connect, folder):
    client, stranger = connect(proxy, **signed_by("app", "app-secret")), connect(proxy)
    settings = consumer_settings("orders", "readers")
    async with telling(stranger, settings), telling(client, settings):
        async with Admin((folder / "namesrv").read_text(), **_root(folder)) as admin, asyncio.timeout(20):
            while client.client_id not in {one.client_id for one in await admin.members("readers")}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert stranger.client_id not in {one.client_id for one in await admin.members("readers")}
    await client.call("NotifyClientTermination", group=named("readers"))


async def test_a_port_with_tls_names_http_2_and_takes_plain_clients_if_it_is_permissive(proxy, connect, folder):
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection(*proxy.port.address, ssl=context, server_hostname="127.0.0.1")
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.close()
    assert (await connect(proxy).call("GetOffset")).status.code == pb.NOT_IMPLEMENTED
