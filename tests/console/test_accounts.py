"""Console of a secured cluster, as `dledger up --secure` starts both: people have their own rights, nobody has any."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from served_console import Visitor

from dledger_client import AccessRule, AccountAdmin, Credentials, Tls
from dledger_client.testing.ports import find_free_block
from dledger_console.sessions import FREE_GUESSES
from tests.waiting import wait_until

SECONDS = 60.0
READER = Credentials("reader", "secret of the reader")


class Secured(NamedTuple):
    """A secured cluster: its directory, its console's address, and its administrator."""

    data: Path
    address: str
    namesrv: str
    root: Credentials

    def visitor(self, credentials: Credentials | None = None) -> Visitor:
        """Return a visitor, who is logged in with these credentials."""
        visitor = Visitor(self.address)
        if credentials is not None:
            visitor.go("/login")
            page = visitor.press("Log in", account=credentials.access_key, secret=credentials.secret)
            assert page.response.url.path == "/", page.text
        return visitor


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dledger_admin", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    data = tmp_path_factory.mktemp("secured") / "data"
    base, port = find_free_block([*range(4), 90]), free_port()
    ports = ("--base-port", str(base), "--namesrv-port", str(base + 90), "--console-port", str(port))
    try:
        started = run("up", "--data", str(data), "--nodes", "1", *ports, "--secure", "--detach", "-o", "json")
        assert started.returncode == 0, started.stderr
        address = json.loads(started.stdout)["console"]
        assert address == f"http://127.0.0.1:{port}/"
        root = Credentials(*(data / "secure/credentials").read_text().split())
        asyncio.run(add_reader(f"127.0.0.1:{base + 90}", root, Tls(str(data / "secure/ca.pem"))))
        wait_until(lambda: answers(address), SECONDS)
        yield Secured(data, address, f"127.0.0.1:{base + 90}", root)
    finally:
        stopped = run("down", "--data", str(data), "-o", "json")
    assert "console" in json.loads(stopped.stdout)["stopped"]
    assert not answers(address)


def answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}login").status_code == 200
    except httpx.TransportError:
        return False


async def add_reader(namesrv: str, root: Credentials, tls: Tls) -> None:
    """Make an account that may look at the cluster and its topics, and change nothing."""
    async with AccountAdmin(namesrv, credentials=root, tls=tls) as accounts:
        await accounts.create(READER.access_key, READER.secret)
        for resource in ("Cluster:*", "Topic:*", "Group:*"):
            await accounts.grant(READER.access_key, AccessRule(resource, ("Get", "List")))


def test_nobody_sees_anything_but_the_login(secured: Secured) -> None:
    visitor = secured.visitor()
    for path in ("/", "/topics", "/messages?topic=t", "/consumer-groups/g?x=1", "/bodies/7F"):
        page = visitor.go(path)
        assert page.response.url.path == "/login", path
        assert page.forms[-1].fields["next"] == path
        assert "broker-a" not in page.text
    for path in ("/api", "/api/topics", "/live", "/live/broker-groups"):
        answer = visitor.http.get(path)
        assert (answer.status_code, answer.json()["title"]) == (401, "Unauthorized"), path
    token = {"X-CSRF-Token": visitor.token()}
    assert visitor.http.post("/api/change/topic", json={"topic": "t"}, headers=token).status_code == 401


def test_a_person_logs_in_comes_back_to_the_page_and_logs_out(secured: Secured) -> None:
    visitor = secured.visitor()
    visitor.go("/topics?system=true")
    before = dict(visitor.http.cookies)
    page = visitor.press("Log in", account=secured.root.access_key, secret=secured.root.secret)
    assert (page.response.url.path, "TBW102" in page.text) == ("/topics", True)
    assert secured.root.access_key in page.text
    assert secured.root.secret not in page.response.text
    assert before != dict(visitor.http.cookies)  # who knew the earlier cookie knows nothing now
    old = httpx.Client(base_url=secured.address, cookies=before)
    assert old.get("/api/topics").status_code == 401
    (cookie,) = [one for one in visitor.http.cookies.jar if one.name.startswith("dledger_console")]
    assert cookie.has_nonstandard_attr("HttpOnly")
    logged_in = dict(visitor.http.cookies)
    assert visitor.press("Log out").response.url.path == "/login"
    assert httpx.get(f"{secured.address}api/topics", cookies=logged_in).status_code == 401


def test_the_rights_of_the_person_count_and_the_audit_log_names_the_person(secured: Secured) -> None:
    reader = secured.visitor(READER)
    assert "Healthy" in reader.go("/").text
    reader.go("/topics")
    reader.press("Preview the topic", topic="mine")
    page = reader.press("Do it")
    assert page.response.status_code == 403
    assert "Your account may not do this." in page.text
    root = secured.visitor(secured.root)
    root.go("/topics")
    root.press("Preview the topic", topic="mine")
    assert "Topic mine is created." in root.press("Do it").text
    audit = secured.data / "broker-a-n0" / "log" / "audit.log"

    def changed_by() -> list[str]:
        lines = [json.loads(line) for line in audit.read_text().splitlines()]
        return [one["who"] for one in lines if one["what"] == "UPDATE_AND_CREATE_TOPIC"]

    wait_until(lambda: changed_by() == [secured.root.access_key], SECONDS)


def test_a_session_ends_with_the_secret_that_opened_it(secured: Secured) -> None:
    namesrv, tls = secured.namesrv, Tls(str(secured.data / "secure/ca.pem"))
    guest = Credentials("guest", "first secret")

    async def put(secret: str, *, made: bool = True) -> None:
        async with AccountAdmin(namesrv, credentials=secured.root, tls=tls) as accounts:
            if not made:
                await accounts.create(guest.access_key, secret)
                await accounts.grant(guest.access_key, AccessRule("Topic:*", ("Get", "List")))
            else:
                await accounts.change(guest.access_key, secret=secret)

    asyncio.run(put(guest.secret, made=False))
    visitor = secured.visitor(guest)
    assert visitor.http.get("/api/topics").status_code == 200
    asyncio.run(put("second secret"))
    assert visitor.http.get("/api/topics").status_code == 401
    assert visitor.go("/topics").response.url.path == "/login"
    asyncio.run(put(guest.secret))
    assert visitor.http.get("/api/topics").status_code == 401  # the session is gone, not only its right


def test_a_login_leads_to_no_other_host(secured: Secured) -> None:
    for path in ("//evil.example/", "https://evil.example/", "/\\evil.example", "\\\\evil.example"):
        visitor = Visitor(secured.address)
        visitor.http.follow_redirects = False
        visitor.go("/login")
        fields = {"account": secured.root.access_key, "secret": secured.root.secret, "next": path}
        answer = visitor.press("Log in", **fields).response
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_a_wrong_login_tells_nothing_and_the_next_ones_wait(secured: Secured) -> None:
    visitor = secured.visitor()
    texts = set()
    for account in ("guessed", READER.access_key):
        visitor.go("/login")
        page = visitor.press("Log in", account=account, secret="wrong")
        texts.add((page.response.status_code, page.text))
    assert {status for status, _ in texts} == {401}
    assert len(texts) == 1
    for _ in range(FREE_GUESSES + 1):
        visitor.go("/login")
        page = visitor.press("Log in", account="guessed", secret="wrong")
    assert page.response.status_code == 429
    assert int(page.response.headers["retry-after"]) >= 1
    visitor.go("/login")
    assert visitor.press("Log in", account=READER.access_key, secret=READER.secret).response.status_code == 200


def test_an_account_is_made_gets_a_rule_and_the_console_says_what_it_may_do(secured: Secured) -> None:
    root = secured.visitor(secured.root)
    root.go("/accounts")
    page = root.press("Preview the account", account="shop")
    assert "account shop may do nothing until it gets rights" in page.text
    page = root.press("Do it")
    secret = page.text.partition("shown only now: ")[2].split()[0]
    assert secret not in root.go("/accounts/shop").text
    page = root.press("Preview the rule", resource="Topic:orders", actions="Pub Get")
    assert "account shop may Pub, Get Topic:orders" in page.text
    page = root.press("Do it")
    assert "The rule of account shop on Topic:orders is granted." in page.text
    assert "Yes: broker-a: allowed." in root.go("/may?account=shop&action=Pub&resource=Topic:orders").text
    assert "No: broker-a: no rule allows it." in root.go("/may?account=shop&action=Sub&resource=Topic:orders").text
    assert root.go("/may?account=shop&action=Fly&resource=Topic:orders").response.status_code == 409
    shop = secured.visitor(Credentials("shop", secret))
    assert shop.go("/quotas").response.status_code == 403
    root.go("/accounts/shop")
    root.press("Revoke")
    assert "is revoked." in root.press("Do it").text
    root.press("Preview what is refused")
    assert "Account shop is disabled." in root.press("Do it").text
    assert shop.go("/topics").response.url.path == "/login"
    root.go("/accounts/shop")
    root.press("Show what goes")
    assert "Account shop is deleted." in root.press("Do it").text
    assert root.go("/accounts/shop").response.status_code == 404


def test_who_may_only_look_reads_of_elections_and_neither_sets_quotas_nor_reads_the_audit_log(
    secured: Secured,
) -> None:
    reader = secured.visitor(READER)
    assert reader.go("/broker-groups/broker-a").response.status_code == 200
    assert "elected by a majority" in reader.page.text
    page = reader.go("/audit")
    assert (page.response.status_code, "Your account may not do this." in page.text) == (403, True)
    reader.go("/quotas")
    page = reader.press("Preview the quota", kind="topic", name="t", messages="1", confirm="yes")
    assert (page.response.status_code, "Your account may not do this." in page.text) == (403, True)
