"""A process that cannot start says why in one line, exits with a code, and leaves its directory as it was."""

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
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import dledger_admin
import dledger_broker
import dledger_namesrv
from dledger_broker.__main__ import main as run_broker
from dledger_client.testing.ports import NAMESRV_OFFSET, find_base_port
from dledger_namesrv.__main__ import main as run_namesrv

pytestmark = pytest.mark.slow

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
    """A `dledger` process in the foreground, from the line that says it is ready until SIGINT."""
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
    """The one line that a refused command printed."""
    assert done.returncode == code, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def contents(directory: Path) -> dict[str, str]:
    """Every file below a directory by its hash; the lock names whoever tried last."""
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
        """A configuration file with some keys changed, or added; None leaves a key out."""
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
        """The line with which a broker refuses to start."""
        return the_line(dledger("broker", "--config", self.config(**changes), "--bootstrap"), EXIT_CANNOT_START)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """A deployment whose broker has run and was stopped; tests that use it leave it as it is."""
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


def test_a_port_in_use_leaves_a_directory_of_before_alone(used):
    before = contents(used.data)
    with socket.create_server(("127.0.0.1", used.base_port + 1)):
        used.refused()
    assert contents(used.data) == before


def test_the_port_of_a_name_server_in_use_is_named(deployment):
    config = deployment.folder / "namesrv.toml"
    port = deployment.base_port + NAMESRV_OFFSET
    config.write_text(f'port = {port}\ndata = "{deployment.data}"\n')
    with socket.create_server(("127.0.0.1", port)):
        line = the_line(dledger("namesrv", "--config", str(config)), EXIT_CANNOT_START)
    assert f"127.0.0.1:{port} is already in use: stop what uses it or choose another port" in line


def test_up_names_the_process_that_has_a_port(deployment):
    ports = ("--base-port", str(deployment.base_port), "--namesrv-port", str(deployment.base_port + NAMESRV_OFFSET))
    with socket.create_server(("127.0.0.1", deployment.base_port + 11)):
        line = the_line(dledger("up", "--data", str(deployment.data), *ports, "--detach"), 1)
    assert f"port {deployment.base_port + 11} (" in line
    assert f"is in use by pid {os.getpid()} (" in line
    assert "--base-port" in line
    assert not deployment.data.exists()


def test_a_host_that_is_not_of_this_machine_is_named(deployment):
    line = deployment.refused(host="192.0.2.1", advertised_host="127.0.0.1")
    assert "192.0.2.1" in line
    assert "must be an address of this machine" in line


@pytest.mark.parametrize("host", ["::1", "300.1.1.1", "http://mq", "a..b"])
def test_an_advertised_host_that_never_will_be_one_is_named(deployment, host):
    line = deployment.refused(advertised_host=host)
    assert f"advertised_host = '{host}'" in line
    assert "set it to an address of this machine, or to a name of it" in line
    assert not deployment.data.exists()


# ---------------------------------------------------------------- directories


@pytest.mark.parametrize(("key", "word"), [("cluster", "cluster"), ("broker_group", "group"), ("node_id", "node id")])
def test_a_directory_of_another_cluster_group_or_node_is_left_alone(used, key, word):
    before = contents(used.data)
    mine = {"cluster": "east", "broker_group": "broker-a", "node_id": NODE}[key]
    line = used.refused(**{key: "other"})
    assert f"{used.data} belongs to {word} {mine!r}, this node is configured as {word} 'other'" in line
    assert "correct the configuration or name another data directory" in line
    assert contents(used.data) == before


def test_a_directory_of_a_newer_format_is_left_alone(used, deployment):
    shutil.copytree(used.data, deployment.data)
    for name in ("identity.json", "identity.copy.json"):
        identity = deployment.data / name
        identity.write_text(json.dumps({**json.loads(identity.read_text()), "format": 3}))
    before = contents(deployment.data)
    line = deployment.refused()
    assert "identity.json has format 3, this version reads formats up to 2" in line
    assert "start it with the version that wrote it" in line
    assert contents(deployment.data) == before


def test_another_segment_size_is_refused(used):
    before = contents(used.data)
    line = used.refused(segment_bytes=1 << 24)
    assert f"was made with segment_bytes {1 << 30}, the configuration says {1 << 24}" in line
    assert contents(used.data) == before


def test_a_directory_in_use_names_the_live_process(deployment):
    with serving("broker", "--config", deployment.config(), "--bootstrap") as process:
        line = deployment.refused(port=deployment.base_port + 10)
        assert f"{deployment.data} is in use by the live process {process.pid}; stop that one first" in line
        assert (deployment.data / "pid").read_text() == f"{process.pid}\n"


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


# ---------------------------------------------------------------- configuration


def test_an_unknown_key_is_answered_with_the_one_that_was_meant(deployment):
    line = deployment.refused(flussh="sync")
    assert "unknown key 'flussh', did you mean 'flush'?" in line
    assert "did you mean 'flushDiskType'?" in deployment.refused(flushDiskTyp="SYNC_FLUSH")
    assert not deployment.data.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listenPort": 1234}, ["listenPort = 1234 contradicts port = ", "remove one"]),
        ({"heartbeat_ms": 800}, ["heartbeat_ms = 800", "election_min_ms = 500", "elections between two heartbeats"]),
        ({"http_port": 10911, "port": 10911}, ["http_port = 10911 is already port", "a port of its own"]),
        ({"max_message_bytes": 4096, "max_frame_bytes": 2048}, ["max_message_bytes = 4096", "max_frame_bytes = 2048"]),
        ({"port": "10911"}, ["port = '10911', expected a whole number"]),
        ({"max_in_flight": 0}, ["max_in_flight = 0 is outside 1..1000000"]),
        ({"host": "0.0.0.0"}, ["advertised_host is missing while host = '0.0.0.0'"]),
        ({"namesrv": ["no port"]}, ["namesrv = 'no port', expected \"host:port\""]),
        ({"broker_group": None}, ["broker_group is missing", "it names the Raft group"]),
    ],
)
def test_a_wrong_configuration_names_the_key_what_was_found_and_what_was_expected(deployment, capsys, changes, words):
    assert run_broker(["--config", deployment.config(**changes)]) == EXIT_CANNOT_START
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert [word for word in words if word not in line] == []
    assert not deployment.data.exists()


@pytest.mark.parametrize(
    ("secret", "mode", "words"),
    [
        (None, 0o600, "cannot be read (No such file or directory)"),
        (b"short", 0o600, "holds 5 bytes, at least 16 expected"),
        (b"s" * 32, 0o644, "has mode 0644, so that others can read the group's secret: chmod 600 it"),
    ],
)
def test_a_secret_that_is_none_is_refused(deployment, secret, mode, words):
    if secret is not None:
        deployment.secret.write_bytes(secret)
        deployment.secret.chmod(mode)
    line = deployment.refused(secret_file=str(deployment.secret))
    assert f"secret_file {deployment.secret} {words}" in line
    assert not deployment.data.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_conections = 9", "max_conections = 9: no such key, did you mean 'max_connections'?"),
        ("port = 1\nlistenPort = 2", "listenPort = 2 contradicts port = 1: keep one of them"),
        ("max_connections = 0", "max_connections = 0: expected 1 to 1000000"),
    ],
)
def test_a_wrong_configuration_of_a_name_server_is_named(deployment, capsys, text, words):
    config = deployment.folder / "namesrv.toml"
    config.write_text(f'data = "{deployment.data}"\n{text}\n')
    assert run_namesrv(["--config", str(config)]) == EXIT_CANNOT_START
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert words in line
    assert not deployment.data.exists()


@pytest.mark.parametrize("run", [run_broker, run_namesrv])
def test_a_missing_file_is_named(tmp_path, capsys, run):
    assert run(["--config", str(tmp_path / "nowhere.toml")]) == EXIT_CANNOT_START
    line = capsys.readouterr().err
    assert f"{tmp_path / 'nowhere.toml'}" in line
    assert "cannot be read" in line


# ---------------------------------------------------------------- open files


def test_clients_leave_a_node_the_files_that_it_needs(deployment):
    limited = ["sh", "-c", 'ulimit -n 200 && exec "$@"', "sh"]
    with serving("broker", "--config", deployment.config(), "--bootstrap", before=limited):
        idle = [socket.create_connection(("127.0.0.1", deployment.base_port), SECONDS) for _ in range(100)]
        for _ in range(150):
            with socket.create_connection(("127.0.0.1", deployment.base_port), SECONDS) as refused:
                with suppress(ConnectionResetError):
                    assert refused.recv(1) == b""
        status = f"http://127.0.0.1:{deployment.base_port + 2}/healthz"
        with urllib.request.urlopen(status, timeout=SECONDS) as answer:
            assert answer.read() == b"ok"
        for connection in idle:
            connection.close()
    log = (deployment.data / "log" / "broker.log").read_text()
    assert (
        "max_connections = 10000 are more than the 200 files that this process may open leave room for: 100 are" in log
    )
    assert "max_connections = 100 are open" in log


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
