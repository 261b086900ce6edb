"""Access control is turned on, and secrets of an account and of the group, key file, authority and certificates change.
No send fails.

Each change follows the guides, on a cluster of three nodes, while a client sends.
"""

from __future__ import annotations

import json
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from commands import output

from dledger_base.issuing import Authority
from dledger_client import ClientError, Credentials, SyncProducer, Tls
from dledger_client.testing.ports import NAMESRV_OFFSET, find_base_port

NODES = 3
DEADLINE_S = 120.0

pytestmark = pytest.mark.long


class Cluster:
    """Cluster of `dledger up`, `secured` from its first start or not."""

    def __init__(self, data: Path, *more: str, secured: bool = True) -> None:
        self.data, self.secure, self._secured = data, data / "secure", secured
        self.base = find_base_port(1, NODES)
        self.namesrv = f"127.0.0.1:{self.base + NAMESRV_OFFSET}"
        ports = ("--base-port", str(self.base), "--namesrv-port", str(self.base + NAMESRV_OFFSET))
        self.run("up", "--data", str(data), "--groups", "1", "--nodes", str(NODES), *ports, "--detach", *more)
        self.logs = [data / f"broker-a-n{number}" / "log" / "broker.log" for number in range(NODES)]

    def run(self, *arguments: str) -> str:
        """Run a command with the variables of `client.env`, and return its output."""
        env = {"DLEDGER_NAMESRV": self.namesrv, "DLEDGER_KEY_FILE": str(self.data / "access.keys")}
        if (self.secure / "client.env").exists():
            words = shlex.split((self.secure / "client.env").read_text())
            env.update({name: value for name, _, value in (word.partition("=") for word in words) if value})
        return output(*arguments, timeout=DEADLINE_S, **env)

    def secret_of(self, *arguments: str) -> str:
        return str(json.loads(self.run("account", *arguments, "--output", "json"))["secret"])

    def once_each_has_logged(self, event: str, change: Callable[[], None], nodes: int = NODES) -> None:
        """Make a change, and wait until `nodes` nodes have logged an event once more."""
        logs = self.logs
        before = [log.read_text().count(event) for log in logs]
        change()
        deadline = time.monotonic() + DEADLINE_S
        while sum(log.read_text().count(event) > count for log, count in zip(logs, before, strict=True)) < nodes:
            assert time.monotonic() < deadline, f"too few nodes have logged {event}"
            time.sleep(0.1)

    @contextmanager
    def sending(self, secret: str) -> Iterator[None]:
        """Send with a secret meanwhile. Check that no send fails, and that some succeed before and after the body."""
        failed: list[Exception] = []
        sent, stop = 0, threading.Event()

        def send() -> None:
            nonlocal sent
            tls = Tls(self.secure / "ca.pem") if self._secured else None
            try:
                with SyncProducer(self.namesrv, tls=tls, credentials=Credentials("app", secret)) as producer:
                    while not stop.is_set():
                        producer.send("orders", b"x")
                        sent += 1
                        stop.wait(0.005)
            except Exception as error:
                failed.append(error)

        def until_more_are_sent(more: int = 20) -> None:
            until, deadline = sent + more, time.monotonic() + DEADLINE_S
            while sent < until and not failed:
                assert time.monotonic() < deadline, "nothing is sent"
                time.sleep(0.05)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            until_more_are_sent()
            yield
            until_more_are_sent()
        finally:
            stop.set()
            thread.join(DEADLINE_S)
        assert failed == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("rotated") / "data"
    more = data.with_name("more.toml")
    more.write_text("drain_ms = 1000\n")
    cluster = Cluster(data, "--secure", "--config", str(more))
    try:
        cluster.run("topic", "create", "orders")
        yield cluster
    finally:
        cluster.run("down", "--data", str(data))


@pytest.fixture(scope="module")
def secret(cluster: Cluster) -> str:
    secret = cluster.secret_of("create", "app")
    cluster.run("acl", "grant", "app", "Topic:orders", "Pub")
    return secret


def test_secrets_of_an_account_overlap(cluster: Cluster, secret: str) -> None:
    with cluster.sending(secret):
        second = cluster.secret_of("rotate", "app", "--keep-earlier")
        with cluster.sending(second):
            pass
    with cluster.sending(second):
        cluster.run("account", "drop-earlier", "app")
    third = cluster.secret_of("rotate", "app", "--keep-earlier")
    with cluster.sending(second), cluster.sending(third):
        pass


def test_the_key_file_is_changed(cluster: Cluster, secret: str) -> None:
    secret = cluster.secret_of("rotate", "app")
    keys = cluster.secure / "access.keys"
    old, new = keys.read_text().strip(), cluster.run("account", "new-key").strip()

    def write(*lines: str) -> Callable[[], None]:
        return lambda: replaced(keys, "".join(f"{line}\n" for line in lines).encode())

    with cluster.sending(secret):
        cluster.once_each_has_logged("event=access_keys_loaded", write(old, new))
        cluster.once_each_has_logged("event=access_keys_loaded", write(new, old))
        cluster.run("account", "reseal")
        cluster.once_each_has_logged("event=access_keys_loaded", write(new))
    assert "app" in cluster.run("account", "list")


def test_the_secret_of_the_group_is_changed(cluster: Cluster, secret: str) -> None:
    """One node is restarted at each step, so that links are made by what counts then."""
    secret = cluster.secret_of("rotate", "app")
    file, data = cluster.data / "secret", str(cluster.data)
    old, new = file.read_text().strip(), "the next secret of the group"
    steps = (f"{old}\nalso: {new}\n", f"{new}\nalso: {old}\n", f"{new}\n")
    with cluster.sending(secret):
        for number, content in enumerate(steps):
            cluster.once_each_has_logged("event=group_secret_loaded", partial(replaced, file, content.encode()))
            cluster.run("node", "stop", "--data", data, f"broker-a-n{number}")
            cluster.run("node", "start", "--data", data, f"broker-a-n{number}", "--detach")
    cluster.run("node", "lead", "--data", data, "broker-a-n2")
    assert not any("the secrets differ" in log.read_text() for log in cluster.logs)


def test_authority_and_certificates_are_changed(cluster: Cluster, secret: str) -> None:
    secret = cluster.secret_of("rotate", "app")
    authority, trusted = Authority("another", timedelta(days=1)), cluster.secure / "ca.pem"
    issued = authority.issue("127.0.0.1", ["127.0.0.1", "localhost"])

    def replace_certificate() -> None:
        replaced(cluster.secure / "node-key.pem", issued.key)
        replaced(cluster.secure / "node.pem", issued.certificate)

    with cluster.sending(secret):
        loaded = "event=certificate_loaded"
        both = trusted.read_bytes() + authority.certificate
        cluster.once_each_has_logged(loaded, lambda: replaced(trusted, both))
        with cluster.sending(secret):
            cluster.once_each_has_logged(loaded, replace_certificate)
            with cluster.sending(secret):
                cluster.once_each_has_logged(loaded, lambda: replaced(trusted, authority.certificate))
        with cluster.sending(secret):
            pass


def replaced(path: Path, content: bytes) -> None:
    """Replace a file by a private one, at once."""
    new = path.with_suffix(".new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)


def test_access_control_is_turned_on(tmp_path: Path) -> None:
    """Each node goes through off, `log` and `on`, one node after the other, as the guide says.

    In between an account is made.
    """
    data, keys, secret = tmp_path / "data", tmp_path / "data" / "access.keys", "the secret of app"
    (tmp_path / "more.toml").write_text("drain_ms = 1000\n")
    cluster = Cluster(data, "--config", str(tmp_path / "more.toml"), secured=False)
    try:
        cluster.run("topic", "create", "orders")
        replaced(keys, cluster.run("account", "new-key").encode())

        def restart_with(mode: str) -> None:
            for number in range(NODES):
                node = f"broker-a-n{number}"
                file = data / node / "broker.toml"
                kept = [line for line in file.read_text().splitlines() if not line.startswith("access_")]
                kept = [f'access_key_file = "{keys}"', f'access_control = "{mode}"', *kept]
                file.write_text("\n".join(kept) + "\n")
                cluster.run("node", "stop", "--data", str(data), node)
                cluster.run("node", "start", "--data", str(data), node, "--detach")

        with cluster.sending(secret):
            restart_with("log")
            make_account(cluster, secret)
            cluster.once_each_has_logged("event=access_control_changed state=on", lambda: restart_with("on"), nodes=1)
        with SyncProducer(cluster.namesrv) as unsigned, pytest.raises(ClientError):
            unsigned.send("orders", b"x")
    finally:
        cluster.run("down", "--data", str(data))


def make_account(cluster: Cluster, secret: str) -> None:
    """Create the account with which clients already sign."""
    imported = cluster.data / "plain_acl.yml"
    imported.write_text(f"accounts:\n- accessKey: app\n  secretKey: {secret}\n  topicPerms:\n  - orders=PUB\n")
    cluster.run("account", "import", str(imported))
