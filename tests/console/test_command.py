"""`dledger console` as a process, and the console among the processes of `dledger up`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from dledger_admin.cluster import console as local_console
from dledger_admin.cluster.console import CONSOLE, console_service, start_console, stop_console
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.operations.access import Access
from dledger_client import Credentials
from dledger_client.testing.ports import find_free_block
from dledger_console.__main__ import main
from dledger_console.cluster import Cluster
from dledger_console.command import console
from tests.waiting import wait_until

SECONDS = 30


def test_the_command_says_its_address_serves_and_stops_at_a_signal(cluster) -> None:
    command = [sys.executable, "-m", "dledger_admin", "console", "--namesrv", cluster.namesrv, "--port", "0"]
    environment = os.environ | {"DLEDGER_CREDENTIALS": "not read, because the console has no account"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("console on ").strip()
        assert "Healthy" in httpx.get(address).text
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_a_taken_port_is_one_line_that_says_what_to_do(cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = CliRunner().invoke(console, ["--namesrv", cluster.namesrv, "--port", str(port)])
    assert done.exit_code == 1
    assert done.stderr.startswith(f"Error: 127.0.0.1:{port} cannot be listened on")
    assert "give another --port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_a_name_server_it_does_not_start() -> None:
    done = CliRunner().invoke(console, ["--namesrv", "127.0.0.1:1", "--port", "0"])
    assert (done.exit_code, "no name server at 127.0.0.1:1" in done.stderr) == (1, True)


def test_the_console_of_a_cluster_has_no_account_of_its_own() -> None:
    with pytest.raises(AssertionError, match="signs as the person"):
        Cluster(Access("127.0.0.1:1", Credentials("root", "secret")))


def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "console.toml"
    for text in ("port = 'x'", "namesrv =", ""):
        wrong.write_text(text)
        assert main(["--config", str(wrong)]) == 2
        assert capsys.readouterr().err.startswith("console: ")
    assert main(["--config", str(tmp_path / "none")]) == 2


@pytest.fixture
def layout(tmp_path: Path, cluster) -> Iterator[ClusterLayout]:
    """Yield a layout whose name server is that of the tests' cluster. Its console is stopped."""
    port = int(cluster.namesrv.rpartition(":")[2])
    made = ClusterLayout(tmp_path, 1, 1, port, port + 100)
    yield made
    stop_console(made)


def test_up_starts_a_console_again_and_stops_it(layout: ClusterLayout) -> None:
    service = console_service(layout)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        address = start_console(layout, port, said.append, secured=False)
        assert address == f"http://127.0.0.1:{port}/"
        wait_until(lambda: serves(address), SECONDS)
        first = service.pid()
        assert start_console(layout, port, said.append, secured=False) == address
        wait_until(lambda: serves(address), SECONDS)
        assert service.pid() not in (None, first)
    finally:
        stop_console(layout)
    assert service.pid() is None
    assert said == []


@pytest.mark.long
def test_up_in_the_foreground_says_the_consoles_address_first_and_stops_it(tmp_path: Path) -> None:
    base = find_free_block([*range(4), 90])
    ports = ("--base-port", str(base), "--namesrv-port", str(base + 90), "--console-port", str(base + 3))
    command = [sys.executable, "-m", "dledger_admin", "up", "--data", str(tmp_path / "mq"), "--nodes", "1", *ports]
    with socket.create_server(("127.0.0.1", 0)) as free:
        command[-1] = str(free.getsockname()[1])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first == f"console http://127.0.0.1:{command[-1]}/\n"
        wait_until(lambda: serves(first.split()[1]), SECONDS)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    assert not serves(first.split()[1])


def serves(address: str) -> bool:
    try:
        return httpx.get(address).status_code == 200
    except httpx.TransportError:
        return False


def test_a_console_that_cannot_start_is_told_and_keeps_nothing_from_starting(
    layout: ClusterLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_console, "HOST", "240.0.0.1")  # no address of this machine
    said: list[str] = []
    service = console_service(layout)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert start_console(layout, port, said.append, secured=False) is None
    assert said[0].startswith("no console: it did not begin to serve: ")
    assert "240.0.0.1" in said[0]
    assert service.pid() is None
    layout.data_dir.joinpath(CONSOLE).rename(layout.data_dir / "other")
    layout.data_dir.joinpath(CONSOLE).write_text("a file in the place of the directory")
    assert start_console(layout, port, said.append, secured=False) is None
    assert said[1].startswith("no console: ")


def test_a_taken_port_is_told_and_port_0_means_none(layout: ClusterLayout) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert start_console(layout, port, said.append, secured=False) is None
    assert said[0].startswith(f"no console: port {port} is in use by pid {os.getpid()}")
    assert said[0].endswith("choose another with --console-port, or --console-port 0 for none")
    assert start_console(layout, 0, said.append, secured=False) is None
    assert len(said) == 1
    assert not (layout.data_dir / CONSOLE).exists()
    assert local_console.DEFAULT_CONSOLE_PORT == 9880
