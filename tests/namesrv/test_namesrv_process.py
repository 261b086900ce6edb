"""The name server as a process: its configuration, its one line, its signals, its exit codes."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import dledger
import dledger_namesrv
import dledger_remoting
import dledger_serving
from dledger_namesrv.config import ConfigError, NameServerConfig, load_config
from dledger_namesrv.server import _DataDirectory

SEARCH_PATH = os.pathsep.join(
    str(Path(str(package.__file__)).parents[1])
    for package in (dledger_remoting, dledger, dledger_serving, dledger_namesrv)
)


def run(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dledger_namesrv", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
    )


def test_whoever_reads_the_pid_file_while_it_is_written_finds_a_pid(tmp_path, monkeypatch):
    """`dledger node stop` would otherwise find that nothing runs."""
    (tmp_path / "pid").write_text("1234567890\n")  # left by a dead one
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


def test_a_directory_in_which_nothing_can_be_written_is_named(tmp_path):
    """As when its disk is full: the file can be made, and nothing fits in."""
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); "
    program = limited + "runpy.run_module('dledger_namesrv', run_name='__main__', alter_sys=True)"
    done = subprocess.run(
        [sys.executable, "-c", program, "--port", "0", "--data", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        timeout=20,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"namesrv: data directory {tmp_path} cannot be used: File too large\n"


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_serves_and_leaves_cleanly(tmp_path, signal_number):
    config = tmp_path / "namesrv.toml"
    config.write_text(f'[namesrv]\ndata = "{tmp_path / "elsewhere"}"\nlistenPort = 0\n')
    process = run("--config", str(config), "--data", str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("namesrv ready on 127.0.0.1:")
        socket.create_connection(("127.0.0.1", int(ready.rpartition(":")[2]))).close()
        assert (tmp_path / "data" / "pid").read_text() == f"{process.pid}\n"
        assert not (tmp_path / "elsewhere").exists()
        process.send_signal(signal_number)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output) == (0, "")
    assert all(" node=namesrv event=" in line for line in errors.splitlines())
    events = [line.partition(" event=")[2].partition(" ")[0] for line in errors.splitlines()]
    assert events == ["version", "configuration", "ready", "stopping", "stopped"]
    assert not (tmp_path / "data" / "pid").exists()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_it_waits_for_its_own_name_says_so_and_stops_on_a_signal(tmp_path, signal_number):
    process = run("--host", "ns-0.mq.invalid", "--port", "0", "--data", str(tmp_path / "data"))
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "event=waits_for_name" in line)
        assert "key=host host='ns-0.mq.invalid'" in line
        process.send_signal(signal_number)
        output, _ = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, output) == (0, "")
    assert not (tmp_path / "data").exists()


def test_the_log_is_json_and_goes_where_the_configuration_says(tmp_path):
    log = tmp_path / "logs" / "ns.json"
    config = tmp_path / "namesrv.toml"
    config.write_text(f'log_format = "json"\nlog_file = "{log}"\nport = 0\n')
    process = run("--config", str(config), "--data", str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("namesrv ready on ")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert errors == ""
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()][-1] == "stopped"
    with pytest.raises(ConfigError, match="log_format = 'xml': expected one of text, json"):
        NameServerConfig(log_format="xml")


def test_a_logger_is_as_quiet_as_the_configuration_says(tmp_path):
    log, config = tmp_path / "ns.log", tmp_path / "namesrv.toml"
    config.write_text(f'log_file = "{log}"\nport = 0\n[log_levels]\n"dledger.namesrv" = "ERROR"\n')
    process = run("--config", str(config), "--data", str(tmp_path / "data"))
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("namesrv ready on ")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert "level=INFO" not in log.read_text()


def test_it_exits_with_2_and_one_line_if_it_cannot_start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = run("--port", str(taken.getsockname()[1]), "--data", str(tmp_path))
        output, errors = process.communicate(timeout=20)
    assert (process.returncode, output) == (2, "")
    assert errors.count("\n") == 1
    assert "is already in use" in errors


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port = 70000", ["port = 70000", "0 to 65535"]),
        ('port = "ninety"', ["port = 'ninety'", "whole number"]),
        ("ports = 1", ["ports = 1", "no such key", "port"]),
        ("port = 1\nlistenPort = 2", ["listenPort = 2", "contradicts port = 1"]),
        ('enable_topic_list = "maybe"', ["'maybe'", "true or false"]),
        ("idle_timeout_ms = 0", ["idle_timeout_ms = 0", "10 to"]),
        ("max_frame_bytes = 99999999", ["max_frame_bytes = 99999999"]),
        ('host = ""', ["host = ''", "text"]),
        ("data = 5", ["data = 5", "text"]),
        ("namesrv = 5", ["namesrv = 5", "table"]),
        ("port = ", ["not a TOML file"]),
    ],
)
def test_a_wrong_configuration_names_key_value_and_what_was_expected(tmp_path, text, words):
    path = tmp_path / "namesrv.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    for word in [str(path), *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read"):
        load_config(tmp_path / "nowhere.toml", {})


def test_keys_of_rocketmq_are_understood(tmp_path):
    path = tmp_path / "namesrv.toml"
    path.write_text('listenPort = "9999"\nserverChannelMaxIdleTimeSeconds = 60\norderMessageEnable = "true"\n')
    config = load_config(path, {"host": "127.0.0.2"})
    assert config == NameServerConfig(host="127.0.0.2", port=9999, idle_timeout_ms=60_000, order_message_enable=True)


def test_rocketmqs_own_file_is_understood_and_what_changes_nothing_here_is_passed_over(tmp_path):
    path = tmp_path / "namesrv.conf"
    path.write_text(
        """
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
    )
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
def test_what_rocketmq_has_and_cannot_be_had_here_is_refused(tmp_path, name, text, why):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=why) as refused:
        load_config(path, {})
    assert str(refused.value).startswith(f"{path}: ")
