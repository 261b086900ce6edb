"""Apache's `mqadmin`, unmodified, on a group with TLS and access control."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import started_mqadmin
from guarded_groups import GUARDED, ROOT_ACCOUNT, issue_tls
from mqadmin import NEW, OLD
from stock_clients import StockClient

from dledger_client import SyncAdmin, Tls
from dledger_client.testing import LocalCluster

SECONDS = 40

MakeTools = Callable[..., Callable[[str], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def secured(folder: Path) -> Iterator[LocalCluster]:
    own, trusted = issue_tls(folder)
    of_nodes, namesrv, of_namesrv = GUARDED.partition("[namesrv]\n")
    with LocalCluster(config=f"{own}{trusted}{of_nodes}{namesrv}{own}{of_namesrv}") as cluster:
        yield cluster


@pytest.fixture
def mqadmin(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[MakeTools]:
    """Return a function that starts mqadmin with TLS or without, and with the account of `tools.yml` or without."""
    started: list[StockClient] = []

    def start(*, tls: bool = True, account: bool = True, version: str = NEW) -> Callable[[str], str]:
        settings = {"tls.enable": str(tls).lower(), "tls.test.mode.enable": "false", "tls.client.authServer": "true"}
        settings["tls.client.trustCertPath"] = f"{folder}/ca.pem"
        home = tmp_path / f"home-{len(started)}"
        tools = started_mqadmin(request, version, home, ROOT_ACCOUNT if account else None, settings)
        started.append(tools)
        return lambda text: str(tools.call("run", timeout=2 * SECONDS, words=text.split(), seconds=SECONDS))

    yield start
    for tools in started:
        tools.close()


def test_mqadmin_makes_topics_and_accounts_over_tls(secured: LocalCluster, folder: Path, mqadmin: MakeTools) -> None:
    run, where = mqadmin(), f"-n {secured.namesrv} -b {secured.client_address(secured.leader())}"
    assert "success" in run(f"updateTopic {where} -t Managed -r 2 -w 2")
    assert "success" in run(f"createUser {where} -u tenant -p secret-of-tenant")
    assert "success" in run(f"createAcl {where} -s User:tenant -r Topic:Managed -a Pub -d Allow")
    with SyncAdmin(secured.namesrv, credentials=ROOT_ACCOUNT, tls=Tls(folder / "ca.pem")) as admin:
        assert "Managed" in admin.topics()
    assert "tenant" in run(f"listUser {where}")
    assert "Topic:Managed" in run(f"getAcl {where} -s User:tenant")


def test_mqadmin_of_the_4_line_makes_accounts_over_tls(secured: LocalCluster, mqadmin: MakeTools) -> None:
    run, where = mqadmin(version=OLD), f"-n {secured.namesrv} -b {secured.client_address(secured.leader())}"
    assert "success" in run(f"updateAclConfig {where} -a tenant49 -s secret-of-49 -t Managed49=PUB|SUB")
    version = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
    assert version.search(shown := run(f"clusterAclConfigVersion {where}")), shown
    assert "success" in run(f"updateGlobalWhiteAddr {where} -g 10.9.8.7")
    assert "success" in run(f"deleteAclConfig {where} -a tenant49")
    assert "tenant49" not in mqadmin()(f"listUser {where}")


def test_mqadmin_creates_changes_copies_and_deletes_accounts_and_rules(
    secured: LocalCluster, mqadmin: MakeTools
) -> None:
    run, address = mqadmin(), secured.client_address(secured.leader())
    where = f"-n {secured.namesrv} -b {address}"
    copying = f"-n {secured.namesrv} -f {address} -t {address}"
    for name in ("worker", "helper"):
        assert "success" in run(f"createUser {where} -u {name} -p secret-of-{name}")
    assert "success" in run(f"updateUser {where} -u worker -p another-secret")
    assert "success" in run(f"updateUser {where} -u worker -s disable")
    assert re.search(r"^worker +\S* +Normal +disable", run(f"getUser {where} -u worker"), re.MULTILINE)
    assert "success" in run(f"createAcl {where} -s User:worker -r Topic:A,Topic:B -a Pub,Sub -d Allow -i 10.0.0.0/8")
    assert "success" in run(f"updateAcl {where} -s User:worker -r Topic:A -a Get -d Deny")
    rules = run(f"getAcl {where} -s User:worker")
    assert re.search(r"^User:worker +\S+ +Topic:A +\[GET\] +\S* *DENY", rules, re.MULTILINE | re.IGNORECASE), rules
    assert "10.0.0.0/8" in rules
    assert "success" in run(f"copyAcl {copying} -s User:worker")
    assert "success" in run(f"copyUser {copying} -u worker")  # onto itself: a new user would lack its secret
    assert "success" in run(f"deleteAcl {where} -s User:worker -r Topic:A")
    listed = run(f"listAcl {where}")
    assert "Topic:B" in listed
    assert not re.search(r"User:worker.*Topic:A", listed), listed
    assert "success" in run(f"deleteUser {where} -u worker")
    users = run(f"listUser {where}")
    assert "helper" in users
    assert "worker" not in users


@pytest.mark.parametrize("lacks", ["tls", "account"])
def test_mqadmin_without_tls_or_an_account_changes_nothing(
    secured: LocalCluster, folder: Path, mqadmin: MakeTools, lacks: str
) -> None:
    run = mqadmin(**{lacks: False})
    address = secured.client_address(secured.leader())
    printed = run(f"updateTopic -n {secured.namesrv} -b {address} -t Never -r 1 -w 1")
    assert "success" not in printed
    assert lacks == "tls" or "username cannot be null" in printed, printed
    with SyncAdmin(secured.namesrv, credentials=ROOT_ACCOUNT, tls=Tls(folder / "ca.pem")) as admin:
        assert "Never" not in admin.topics()
