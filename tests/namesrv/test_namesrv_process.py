"""The name server as a process: its configuration, its ready line, its signals, its exit codes."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dledger
import dledger_base
import dledger_namesrv
import dledger_remoting
from dledger_namesrv.config import ConfigError, NameServerConfig, load_config
from dledger_namesrv.server import StartError, _DataDirectory

SEARCH_PATH = os.pathsep.join(
    str(Path(str(package.__file__)).parents[1])
    for package in (dledger_remoting, dledger, dledger_base, dledger_namesrv)
)


@contextmanager
def running(
    data: Path, *arguments: str, program: tuple[str, ...] = ("-m", "dledger_namesrv")
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *program, *arguments, "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[str], signal_number: int | None = signal.SIGTERM) -> tuple[int, str, str]:
    """Wait for the end of the process, after a signal unless it is None. Return its exit code and what it printed."""
    if signal_number is not None:
        process.send_signal(signal_number)
    output, errors = process.communicate(timeout=20)
    return process.returncode, output, errors


def ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_the_pid_file_holds_the_pid_throughout_its_write(tmp_path, monkeypatch):
    """Otherwise `dledger node stop` would find no running process."""
    (tmp_path / "pid").write_text("1234567890\n")  # left by a dead process
    truncate, found = os.ftruncate, []

    def look_before(descriptor: int, size: int) -> None:
        found.append((tmp_path / "pid").read_text().split()[0])
        truncate(descriptor, size)
        found.append((tmp_path / "pid").read_text().split()[0])

    monkeypatch.setattr(os, "ftruncate", look_before)
    directory = _DataDirectory(tmp_path)
    assert found == [str(os.getpid())] * 2
    directory.release()
    assert not (tmp_path / "pid").exists()


def test_a_directory_released_during_a_start_has_a_single_owner(tmp_path, monkeypatch):
    """The other server removes its file after this one has opened it and before it has locked it."""
    lock = fcntl.flock

    def leave_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        (tmp_path / "pid").unlink()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", leave_first)
    directory = _DataDirectory(tmp_path)
    assert (tmp_path / "pid").read_text() == f"{os.getpid()}\n"
    with pytest.raises(StartError, match="in use by process"):
        _DataDirectory(tmp_path)
    directory.release()


def test_a_directory_in_which_nothing_can_be_written_is_named(tmp_path):
    """As with a full disk, the file can be created, but not written."""
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    program = limited + "runpy.run_module('dledger_namesrv', run_name='__main__', alter_sys=True)"
    with running(tmp_path, "--port", "0", program=("-c", program)) as process:
        text = f"namesrv: data directory {tmp_path} cannot be used: File too large\n"
        assert ended(process, None) == (2, "", text)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_name_server_reports_ready_and_stops_cleanly_on_a_signal(tmp_path, signal_number):
    config = tmp_path / "namesrv.toml"
    config.write_text(f'[namesrv]\ndata = "{tmp_path / "elsewhere"}"\nlistenPort = 0\n')
    with running(tmp_path / "data", "--config", str(config)) as process:
        ready = ready_line(process)
        assert ready.startswith("namesrv ready on 127.0.0.1:")
        socket.create_connection(("127.0.0.1", int(ready.rpartition(":")[2]))).close()
        assert (tmp_path / "data" / "pid").read_text() == f"{process.pid}\n"
        assert not (tmp_path / "elsewhere").exists()
        code, output, errors = ended(process, signal_number)
    assert (code, output) == (0, "")
    assert all(" node=namesrv event=" in line for line in errors.splitlines())
    events = [line.partition(" event=")[2].partition(" ")[0] for line in errors.splitlines()]
    assert events == ["version", "configuration", "ready", "stopping", "stopped"]
    assert not (tmp_path / "data" / "pid").exists()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_the_name_server_waits_for_its_own_name_until_a_signal(tmp_path, signal_number):
    with running(tmp_path / "data", "--host", "ns-0.mq.invalid", "--port", "0") as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "event=waits_for_name" in line)
        assert "key=host host='ns-0.mq.invalid'" in line
        assert ended(process, signal_number)[:2] == (0, "")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
def test_the_log_is_json_and_goes_as_quietly_as_configured_where_the_configuration_says(tmp_path, level):
    log, config = tmp_path / "logs" / "ns.json", tmp_path / "namesrv.toml"
    config.write_text(
        f'log_format = "json"\nlog_file = "{log}"\nport = 0\n[log_levels]\n"dledger.namesrv" = "{level}"\n'
    )
    with running(tmp_path / "data", "--config", str(config)) as process:
        assert ready_line(process).startswith("namesrv ready on ")
        assert ended(process)[2] == ""
    told = [json.loads(line) for line in log.read_text().splitlines()]
    events = [line["event"] for line in told if line["logger"] == "dledger.namesrv"]
    assert events[-1:] == (["stopped"] if level == "INFO" else [])
    with pytest.raises(ConfigError, match="log_format = 'xml': expected one of text, json"):
        NameServerConfig(log_format="xml")


def test_the_name_server_exits_with_2_and_one_line_if_it_cannot_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with running(tmp_path, "--port", str(taken.getsockname()[1])) as process:
            code, output, errors = ended(process, None)
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert "is already in use" in errors


IN_TOML = 'listenPort = "9999"\nserverChannelMaxIdleTimeSeconds = 60\norderMessageEnable = "true"\n'
AS_PASTED = """
    # pasted
    rocketmqHome=/opt/rocketmq
    kvConfigPath=/opt/rocketmq/namesrv/kvConfig.json
    listenPort=9999
    serverWorkerThreads=8
    serverChannelMaxIdleTimeSeconds=60
    orderMessageEnable=true
    clusterTest=false
    enableControllerInNamesrv=false
    """


@pytest.mark.parametrize(("name", "text"), [("namesrv.toml", IN_TOML), ("namesrv.conf", AS_PASTED)])
def test_a_rocketmq_configuration_is_read_and_irrelevant_keys_are_skipped(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    config = load_config(path, {"host": "127.0.0.2"})
    assert config == NameServerConfig(host="127.0.0.2", port=9999, idle_timeout_ms=60_000, order_message_enable=True)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("namesrv.conf", "enableControllerInNamesrv=true", "there is no controller"),
        ("namesrv.toml", 'enableControllerInNamesrv = "true"', "there is no controller"),
        ("namesrv.properties", "clusterTest=true", "from no other name server"),
        ("namesrv.conf", "configBlackList=port", "no such key"),
        ("namesrv.conf", "listenPort", "line 1 is 'listenPort', expected key=value"),
    ],
)
def test_unsupported_rocketmq_settings_are_refused_with_the_reason(tmp_path, name, text, why):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as refused:
        load_config(path, {})
    assert str(refused.value).startswith(f"{path}: ")
