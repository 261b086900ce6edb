"""A process that cannot start reports why in one line, exits with a code, and leaves its directory unchanged."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import dledger_admin
import dledger_broker
import dledger_namesrv
from dledger_broker.__main__ import main as run_broker
from dledger_client.testing.ports import find_base_port
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, encode_command

SECONDS = 30.0
EXIT_CANNOT_START = 2
EXIT_FAILED = 3
NODE = "broker-a-n0"


def dledger(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `dledger` that is expected to end by itself."""
    command = [sys.executable, "-m", "dledger_admin", *arguments]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=False
    )


@contextmanager
def serving(*arguments: str, before: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """Run a `dledger` process in the foreground, from its ready line until SIGINT."""
    command = [*before, sys.executable, "-m", "dledger_admin", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], SECONDS)[0], "it did not become ready"
        ready = process.stdout.readline()
        assert " ready on " in ready, process.communicate(timeout=SECONDS)
        yield process
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
    finally:
        process.kill()
        process.communicate()


def the_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the only line that a refused command printed."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def contents(directory: Path) -> dict[str, str]:
    """Return the hash of every file below a directory, except the lock, which names the last process that tried."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


class Deployment:
    """A broker and a name server with a directory and ports of their own, not started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base_port = find_base_port(1, 3)
        self.data = folder / "data"
        self.secret = folder / "secret"

    def config(self, **changes: object) -> str:
        """Write a configuration file with some keys changed or added. None leaves a key out."""
        values: dict[str, object] = {
            "cluster": "east",
            "broker_group": "broker-a",
            "node_id": NODE,
            "data_dir": str(self.data),
            "port": self.base_port,
            **changes,
        }
        file = self.folder / f"{len(list(self.folder.iterdir()))}.toml"
        lines = (f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None)
        file.write_text("\n".join(lines) + "\n")
        return str(file)

    def refused(self, **changes: object) -> str:
        """Return the line with which a broker refuses to start."""
        return the_line(dledger("broker", "--config", self.config(**changes), "--bootstrap"), EXIT_CANNOT_START)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """Return a deployment whose broker has run and stopped. Tests must leave it unchanged."""
    deployment = Deployment(tmp_path_factory.mktemp("used"))
    with serving("broker", "--config", deployment.config(), "--bootstrap"):
        pass
    return deployment


# ---------------------------------------------------------------- ports and addresses


@pytest.mark.parametrize(("key", "offset"), [("port", 0), ("peer_port", 1), ("http_port", 2)])
def test_a_port_in_use_is_named_with_its_key_and_no_directory_is_made(deployment, key, offset):
    with socket.create_server(("127.0.0.1", deployment.base_port + offset)):
        line = deployment.refused()
    assert f"{key} {deployment.base_port + offset} on 127.0.0.1 is in use by another process" in line
    assert f"set another {key}" in line
    assert not deployment.data.exists()


def test_a_host_that_is_not_of_this_machine_is_named(deployment):
    line = deployment.refused(host="192.0.2.1", advertised_host="127.0.0.1")
    assert "192.0.2.1" in line
    assert "must be an address of this machine" in line


# ---------------------------------------------------------------- directories


@pytest.mark.parametrize(("key", "word"), [("cluster", "cluster"), ("broker_group", "group"), ("node_id", "node id")])
def test_a_directory_of_another_cluster_group_or_node_is_left_alone(used, key, word):
    before = contents(used.data)
    mine = {"cluster": "east", "broker_group": "broker-a", "node_id": NODE}[key]
    line = used.refused(**{key: "other"})
    assert f"{used.data} belongs to {word} {mine!r}, this node is configured as {word} 'other'" in line
    assert "correct the configuration or name another data directory" in line
    assert contents(used.data) == before


def test_a_name_servers_directory_in_use_names_the_live_process(deployment):
    config = deployment.folder / "namesrv.toml"
    config.write_text(f'port = 0\ndata = "{deployment.data}"\n')
    with serving("namesrv", "--config", str(config)) as process:
        line = the_line(dledger("namesrv", "--config", str(config)), EXIT_CANNOT_START)
    assert f"{deployment.data} is in use by process {process.pid}; stop it or choose another directory" in line


@pytest.mark.parametrize("pid", [str(os.getpid()), "not a number"])
def test_a_stale_pid_file_is_overwritten(used, pid):
    (used.data / "pid").write_text(f"{pid}\n")
    with serving("broker", "--config", used.config()) as process:
        assert (used.data / "pid").read_text() == f"{process.pid}\n"
    assert not (used.data / "pid").exists()


def test_a_directory_that_cannot_be_made_is_named(deployment, capsys):
    (deployment.folder / "file").touch()
    inside = str(deployment.folder / "file" / "data")
    assert run_broker(["--config", deployment.config(data_dir=inside), "--bootstrap"]) == EXIT_CANNOT_START
    assert capsys.readouterr().err == f"broker: {deployment.folder / 'file'} cannot be used: File exists\n"


def test_a_damaged_identity_is_named(used, deployment):
    shutil.copytree(used.data, deployment.data)
    for name in ("identity.json", "identity.copy.json"):
        (deployment.data / name).write_text("{")
    line = the_line(dledger("broker", "--config", deployment.config(), "--bootstrap"), EXIT_FAILED)
    assert f"{deployment.data}: identity.json is not readable as an identity" in line


# ---------------------------------------------------------------- open files


def test_silent_clients_do_not_exhaust_the_files_of_a_node(deployment):
    limited = ["sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh"]
    with serving("broker", "--config", deployment.config(), "--bootstrap", before=limited):
        ports = range(deployment.base_port, deployment.base_port + 3)
        silent = [socket.create_connection(("127.0.0.1", port), SECONDS) for port in ports for _ in range(700)]
        with socket.create_connection(("127.0.0.1", deployment.base_port), SECONDS) as client:
            client.sendall(encode_command(RemotingCommand(RequestCode.GET_BROKER_CONFIG, 1)))
            assert client.recv(1)
        status = f"http://127.0.0.1:{deployment.base_port + 2}/healthz"
        with urllib.request.urlopen(status, timeout=SECONDS) as answer:
            assert answer.read() == b"ok"
        for connection in silent:
            connection.close()
    log = (deployment.data / "log" / "broker.log").read_text()
    assert (
        "max_connections = 10000 are more than the 1024 files that this process may open leave room for: 512 are" in log
    )
    assert "Too many open files" not in log


# ---------------------------------------------------------------- the interpreter


@pytest.mark.parametrize(
    ("package", "name"), [(dledger_broker, "broker"), (dledger_namesrv, "namesrv"), (dledger_admin, "dledger")]
)
def test_an_old_python_is_told_which_one_is_needed(monkeypatch, package, name):
    entry = Path(package.__path__[0]) / "__main__.py"
    ast.parse(entry.read_text(encoding="utf-8"), feature_version=(3, 7))
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(entry), run_name="__main__")
    assert caught.value.code == f"{name}: Python 3.10 is too old, at least 3.11 is needed"
