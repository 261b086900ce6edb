"""A cluster of `up --secure` takes who has its files, and nobody else."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_client import ClientError, Credentials, RefusedError, SyncAdmin, SyncProducer, Tls
from dledger_client.testing.ports import find_free_block

DLEDGER = [sys.executable, "-m", "dledger_admin"]
DEADLINE_S = 120.0


def run(*arguments: str, env: dict[str, str] | None = None, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command; its output, whatever it says."""
    return subprocess.run(
        [*DLEDGER, *arguments],
        env={**os.environ, **(env or {})},
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    data = tmp_path_factory.mktemp("secured") / "data"
    base = find_free_block([*range(4), 90])
    ports = ("--namesrv-port", str(base + 90), "--base-port", str(base))
    up = run("up", "--data", str(data), "--nodes", "1", *ports, "--secure", "--detach")
    try:
        assert up.returncode == 0, up.stderr
        yield data / "secure", up.stdout
    finally:
        run("down", "--data", str(data))


@pytest.fixture(scope="module")
def variables(started: tuple[Path, str]) -> dict[str, str]:
    """Those of `client.env`, as a shell reads them."""
    words = shlex.split((started[0] / "client.env").read_text())
    return dict(word.split("=", 1) for word in words if word != "export")


def test_commands_work_with_the_variables_that_it_says(started: tuple[Path, str], variables: dict[str, str]) -> None:
    assert f". {started[0]}/client.env" in started[1]
    assert run("topic", "create", "numbers", env=variables).returncode == 0
    assert run("produce", "--topic", "numbers", env=variables, text="1\n2\n").returncode == 0
    read = run("consume", "--topic", "numbers", "--from-beginning", "--exit-eof", env=variables)
    assert read.stdout.split() == ["1", "2"], read.stderr


def test_our_client_needs_both_certificate_and_account(started: tuple[Path, str], variables: dict[str, str]) -> None:
    address, tls = variables["DLEDGER_NAMESRV"], Tls(variables["DLEDGER_TLS_CA"])
    account = Credentials(*(started[0] / "credentials").read_text().split())
    with SyncProducer(address, tls=tls, credentials=account) as producer:
        assert producer.send("ours", b"x").queue_offset == 0
    with SyncAdmin(address, tls=tls) as unsigned, pytest.raises(RefusedError):
        unsigned.create_topic("never")
    with SyncAdmin(address, credentials=account) as plain, pytest.raises(ClientError, match="has to speak TLS"):
        plain.topics()
