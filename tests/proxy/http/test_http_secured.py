"""The front before a cluster with TLS and access control: brokers judge who asks, and the front keeps no secret."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from cluster_checks import dledger
from cluster_fronts import proxy, send
from http_fronts import Caller, basic
from waiting import until

from dledger_client import AccessRule, AccountAdmin, Admin, Credentials, Tls
from dledger_client.testing.ports import find_free_block
from dledger_proxy.http import ClientBackend
from dledger_proxy.http.backend import Caller as CallerOf
from dledger_proxy.http.pool import Pool

pytestmark = pytest.mark.long

BOB, ANN = Credentials("bob", "secret-of-bob"), Credentials("ann", "secret-of-ann")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Tls, Credentials]]:
    """Start a cluster with TLS and access control, in which bob may use the topic `orders` and the group `workers`."""
    data = tmp_path_factory.mktemp("secured") / "data"
    base = find_free_block([*range(4), 90])
    ports = ("--namesrv-port", str(base + 90), "--base-port", str(base))
    dledger("up", "--data", str(data), "--nodes", "1", *ports, "--secure", "--detach")
    try:
        tls, root = Tls(data / "secure" / "ca.pem"), _credentials(data / "secure" / "credentials")
        namesrv = f"127.0.0.1:{base + 90}"
        asyncio.run(_grant(namesrv, tls, root))
        yield namesrv, tls, root
    finally:
        dledger("down", "--data", str(data))


def _credentials(path: Path) -> Credentials:
    return Credentials(*path.read_text().split())


async def _grant(namesrv: str, tls: Tls, root: Credentials) -> None:
    async with (
        Admin(namesrv, credentials=root, tls=tls) as admin,
        AccountAdmin(namesrv, root, tls=tls) as accounts,
    ):
        await admin.create_topic("orders", queues=1)
        for account in (BOB, ANN):
            await accounts.create(account.access_key, account.secret)
        await accounts.grant(BOB.access_key, AccessRule("Topic:orders", ("Pub", "Sub", "Get")))
        for group in ("workers", "http_tail"):
            await accounts.grant(BOB.access_key, AccessRule(f"Group:{group}", ("Sub",)))


def signed(account: Credentials | None) -> dict[str, dict[str, str]]:
    """Return the options of a request that names an account."""
    return {} if account is None else {"headers": basic(account.access_key, account.secret)}


async def statuses(caller: Caller, account: Credentials | None) -> list[int]:
    """Return the statuses of a send, a receive, a look at a topic and a tail."""
    options = signed(account)
    found = [
        (await caller.post("/v1/topics/orders/messages", {"text": "x"}, **options)).status,
        (await caller.post("/v1/topics/orders/receive", {"group": "workers"}, **options)).status,
        (await caller.get("/v1/topics/orders", **options)).status,
    ]
    async with caller.session.get(caller.url + "/v1/topics/orders/tail", **options) as response:
        return [*found, response.status]


async def test_brokers_judge_who_asks(secured: tuple[str, Tls, Credentials]) -> None:
    namesrv, tls, _ = secured
    async with proxy(namesrv, tls=tls) as caller:
        assert await statuses(caller, BOB) == [200] * 4
        assert await statuses(caller, ANN) == [403] * 4
        assert await statuses(caller, None) == [401] * 4
        assert await statuses(caller, Credentials("bob", "guess")) == [401] * 4
        assert await statuses(caller, BOB) == [200] * 4, "the guesses of others have not locked the account"
        answer = await caller.post("/v1/topics/orders/messages", {"text": "x"}, **signed(ANN))
        assert "User:ann has no permission to access Topic:orders" in answer.json["detail"]


async def test_a_receipt_opens_nothing_to_another_account(secured: tuple[str, Tls, Credentials]) -> None:
    namesrv, tls, _ = secured
    async with proxy(namesrv, tls=tls) as caller:
        await send(caller, "orders", "mine", **signed(BOB))
        answer = await caller.post("/v1/topics/orders/receive", {"group": "workers", "wait_seconds": 20}, **signed(BOB))
        body = {"group": "workers", "receipts": [answer.json["messages"][0]["receipt"]]}
        assert (await caller.post("/v1/topics/orders/ack", body, **signed(ANN))).status == 403
        assert (await caller.post("/v1/topics/orders/ack", body, **signed(BOB))).json["results"][0]["state"] == "done"


async def test_clients_of_refused_accounts_are_closed_and_others_are_forgotten_when_idle(
    secured: tuple[str, Tls, Credentials],
) -> None:
    namesrv, tls, _ = secured
    async with ClientBackend(namesrv, tls=tls, idle_s=0.2) as backend:
        pool: Pool = backend._pool
        await backend.topics(CallerOf(BOB, "127.0.0.1", 1))
        assert [key.owner.account for key in pool._entries] == [BOB]
        await until(lambda: backend.clients == 0)
        assert not pool._entries


async def test_a_proxy_with_an_account_has_callers_judged_by_their_own_addresses(
    secured: tuple[str, Tls, Credentials],
) -> None:
    namesrv, tls, root = secured
    proxy_account = Credentials("proxy", "secret-of-proxy")
    async with AccountAdmin(namesrv, root, tls=tls) as accounts:
        await accounts.create(proxy_account.access_key, proxy_account.secret)
        await accounts.grant("proxy", AccessRule("Cluster:*", ("Speak",)))
        await accounts.put_white_list(["127.0.0.2"])
    async with (
        proxy(namesrv, tls=tls, speaker=proxy_account) as caller,
        proxy(namesrv, tls=tls) as silent,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))) as elsewhere,
    ):
        assert await statuses(caller, BOB) == [200] * 4
        assert await statuses(caller, ANN) == [403] * 4
        assert await statuses(caller, Credentials("bob", "guess")) == [401] * 4
        assert await statuses(caller, None) == [401] * 4
        path, body = "/v1/topics/orders/messages", {"text": "x"}
        assert (await Caller(elsewhere, caller.url).post(path, body)).status == 200, "its address is in the white list"
        assert (await Caller(elsewhere, silent.url).post(path, body)).status == 401, "the proxy's address is not"


async def test_a_changed_secret_counts_at_once(secured: tuple[str, Tls, Credentials]) -> None:
    namesrv, tls, root = secured
    async with proxy(namesrv, tls=tls) as caller, AccountAdmin(namesrv, root, tls=tls) as accounts:
        await accounts.create("eve", "first-secret")
        await accounts.grant("eve", AccessRule("Topic:orders", ("Pub",)))
        path, body = "/v1/topics/orders/messages", {"text": "x"}
        assert (await caller.post(path, body, **signed(Credentials("eve", "first-secret")))).status == 200
        await accounts.change("eve", secret="second-secret")
        assert (await caller.post(path, body, **signed(Credentials("eve", "first-secret")))).status == 401
        assert (await caller.post(path, body, **signed(Credentials("eve", "second-secret")))).status == 200
