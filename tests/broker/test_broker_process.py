"""Whole node: in this process where that is enough, and as a process of its own where the process matters."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp.web import AppRunner
from broker_in_process import Client, node_config, running, toml_of, until

from dledger.errors import IdentityError
from dledger.testing.ports import free_ports
from dledger_broker import process
from dledger_broker.config import BrokerConfig
from dledger_broker.errors import ConfigError, StartError
from dledger_broker.node import Broker
from dledger_broker.process import PidFile, StopReport
from dledger_remoting.record import iter_records


async def test_messages_outlive_a_restart_and_the_topics_that_clients_expect_exist(tmp_path: Path) -> None:
    config = node_config(tmp_path)
    async with running(config, bootstrap=True) as broker:
        client = await Client.connect(broker.listener.port)
        for number in range(10):
            assert (await client.send(b"%d" % number)).ext["queueOffset"] == str(number)
        expected = broker.state.topics["TBW102"].config
        assert (expected.perm, expected.write_queue_nums) == (7, 8)
        assert {"DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"} <= set(broker.state.topics)
        counters, gauges = broker.counters(), {gauge.name: gauge.read() for gauge in broker.gauges()}
        assert (counters["messages_in"], gauges["connections"]) == (10, 1)
        assert gauges["key_index_lag_bytes"] == broker.machine.keys.lag_bytes
        assert counters["peer_connects"] == counters["peer_dial_failures"] == 0, "it is alone"
        assert broker.status().ready
        assert broker.machine._disk.spare.users == {"segments", "queues"}, "each closes files that the other one needs"
    async with running(config) as broker:
        client = await Client.connect(broker.listener.port)
        pulled = await client.pull(0)
        assert [record.body for record in iter_records(pulled.body)] == [b"%d" % number for number in range(10)]
        assert (await client.send(b"more")).ext["queueOffset"] == "10"


async def test_a_stopping_node_takes_no_commits_after_saving_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, closed = asyncio.Event(), asyncio.Event()

    async def slow_cleanup(runner: AppRunner) -> None:
        monkeypatch.setattr(broker.listener, "received", lambda *_: taken.set())
        client.tell(15, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"})
        ends = [asyncio.ensure_future(end) for end in (taken.wait(), client.closed())]
        async with asyncio.timeout(20):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        closed.set()
        await cleanup(runner)

    cleanup = AppRunner.cleanup
    monkeypatch.setattr(AppRunner, "cleanup", slow_cleanup)
    async with running(node_config(tmp_path, http_port=free_ports(1)[0]), bootstrap=True) as broker:
        client = await Client.connect(broker.listener.port)
        await client.heartbeat("c1")
        await client.send(b"x")
    assert closed.is_set()
    assert not taken.is_set()


async def test_without_reachable_peers_a_drain_takes_no_time(tmp_path: Path) -> None:
    async with running(node_config(tmp_path, drain_ms=86_400_000), bootstrap=True) as broker:
        async with asyncio.timeout(20):
            await broker.drain()
        assert broker.is_draining


async def test_a_port_in_use_is_named_and_nothing_is_changed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} on 127.0.0.1 is in use"):
            await Broker(node_config(tmp_path, port=port), bootstrap=True).start()
    assert not (tmp_path / "data").exists()


async def test_a_directory_of_another_node_or_in_use_is_refused(tmp_path: Path) -> None:
    async with running(node_config(tmp_path), bootstrap=True):
        with pytest.raises(IdentityError, match=f"in use by the live process {os.getpid()}"):
            await Broker(node_config(tmp_path)).start()
    with pytest.raises(IdentityError, match="broker-a-n7"):
        await Broker(node_config(tmp_path, node_id="broker-a-n7")).start()


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [(None, 0o600, "cannot be read"), (b"short", 0o600, "at least 16"), (b"x" * 32, 0o644, "chmod 600")],
)
async def test_a_bad_secret_is_refused(tmp_path: Path, content: bytes | None, mode: int, text: str) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_bytes(content)
        secret.chmod(mode)
    with pytest.raises(ConfigError, match=text):
        await Broker(node_config(tmp_path, secret_file=str(secret))).start()


# ---- the process


class Process:
    """`python -m dledger_broker` with its output."""

    def __init__(self, tmp_path: Path, config: BrokerConfig | None, *arguments: str, text: str = "") -> None:
        path = tmp_path / "broker.toml"
        path.write_text(text if config is None else toml_of(config))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dledger_broker", "--config", str(path), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self, signal_number: signal.Signals | None = None) -> tuple[int, str]:
        """Return the exit code and the text on stderr, after a signal if one is given."""
        if signal_number is not None:
            self.process.send_signal(signal_number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


def with_rotten_votes(tmp_path: Path) -> BrokerConfig:
    """Return the configuration of a node that was the only one of its group, and whose votes rot."""
    config = node_config(tmp_path)
    process = Process(tmp_path, config, "--bootstrap")
    assert process.ready_line()
    process.end(signal.SIGTERM)
    (config.data_dir / "raft" / "hardstate").write_bytes(bytes(8192))
    return config


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_reports_readiness_and_stops_on_a_signal(tmp_path: Path, signal_number: signal.Signals) -> None:
    config = node_config(tmp_path)
    (config.data_dir).mkdir()
    (config.data_dir / "pid").write_text("1\n")
    process = Process(tmp_path, config, "--bootstrap")
    assert process.ready_line() == f"broker broker-a-n0 ready on 127.0.0.1:{config.port}\n"
    assert (config.data_dir / "pid").read_text() == f"{process.process.pid}\n"
    code, _ = process.end(signal_number)
    assert code == 0
    assert not (config.data_dir / "pid").exists()
    lines = (config.data_dir / "log" / "broker.log").read_text().splitlines()
    assert all(" node=broker-a-n0 event=" in line for line in lines)
    events = [line.partition(" event=")[2].partition(" ")[0] for line in lines]
    assert events[:2] == ["version", "configuration"]
    assert " release=" in lines[0]
    assert f" port='{config.port}'" in lines[1]
    assert "ready" in events
    assert events[-2:] == ["stopping", "stopped"]


async def test_a_lone_node_with_flush_async_keeps_acknowledged_messages_after_a_kill(tmp_path: Path) -> None:
    config = node_config(tmp_path, flush="async")
    bodies = [bytes([number]) * 60_000 for number in range(40)]
    assert sum(map(len, bodies)) > 2 * config.segment_bytes, "entries end at the ends of segments"
    kept: list[bytes] = []
    for arguments in (["--bootstrap"], []):
        process = Process(tmp_path, config, *arguments)
        try:
            assert process.ready_line().startswith("broker broker-a-n0 ready")
            client = await Client.connect(config.port)
            if arguments:
                for offset, body in enumerate(bodies):
                    assert (await client.send(body)).ext["queueOffset"] == str(offset)
            while not arguments and len(kept) < len(bodies):
                kept += [bytes(record.body) for record in iter_records((await client.pull(len(kept))).body)]
        finally:
            process.end(signal.SIGKILL)
    assert kept == bodies


@pytest.mark.parametrize("log_file", ["logs/n0.json", "stdout"])
def test_the_log_is_json_and_goes_where_the_configuration_says(tmp_path: Path, log_file: str) -> None:
    text = toml_of(node_config(tmp_path)) + f"log_format = 'json'\nlog_file = '{log_file}'\n"
    process = Process(tmp_path, None, "--bootstrap", text=text)
    assert process.process.stdout is not None
    lines = []
    while (line := process.ready_line()) and " ready on " not in line:
        lines.append(line)
        if '"event": "ready"' in line:
            break
    process.process.send_signal(signal.SIGTERM)
    rest, _ = process.process.communicate(timeout=30)
    lines += rest.splitlines()
    if log_file != "stdout":
        assert lines == []
        lines = (tmp_path / log_file).read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    assert {one["node"] for one in logged} == {"broker-a-n0"}
    assert [one["event"] for one in logged][:2] == ["version", "configuration"]
    assert logged[-1]["event"] == "stopped"
    assert not (tmp_path / "data" / "log").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("port = 'x'", "expected a whole number"),
        ("prot = 1", "did you mean 'port'"),
        ("advertised_host = '::1'\nhttp_port = 0", "advertised_host = '::1': it is no IPv4 address; set it to"),
    ],
)
def test_a_bad_configuration_is_one_line_and_exit_status_2(tmp_path: Path, line: str, message: str) -> None:
    text = f"broker_group = 'b'\nnode_id = 'n'\ndata_dir = '{tmp_path / 'data'}'\n{line}"
    code, errors = Process(tmp_path, None, text=text).end()
    assert code == 2
    assert errors.startswith("broker: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_process_that_ends_leaves_the_pid_file_of_its_successor(tmp_path: Path) -> None:
    pid_file = PidFile(tmp_path)
    pid_file.write()
    (tmp_path / "pid").write_text("1\n")
    pid_file.remove()
    assert (tmp_path / "pid").read_text() == "1\n"
    pid_file.write()
    for _ in range(2):
        pid_file.remove()
    assert not (tmp_path / "pid").exists()


def test_a_full_disk_lets_a_node_overwrite_the_pid_file_of_a_killed_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, write_text = tmp_path / "pid", Path.write_text

    def on_full_disk(file: Path, *arguments: Any, **named: Any) -> int:
        if file.name == ".pid.tmp":
            file.touch()
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_text(file, *arguments, **named)

    monkeypatch.setattr(Path, "write_text", on_full_disk)
    with pytest.raises(OSError, match="No space left"):
        PidFile(tmp_path).write()
    path.write_text("1234567890\n")
    PidFile(tmp_path).write()
    assert path.read_text() == f"{os.getpid()}\n"
    assert [file.name for file in tmp_path.iterdir()] == ["pid"]


def test_a_lone_node_with_rotten_votes_ends_with_instructions(tmp_path: Path) -> None:
    code, errors = Process(tmp_path, with_rotten_votes(tmp_path)).end()
    assert code == 3
    for said in ("raft/hardstate", "group's only voter", "dledger node recover --accept-loss"):
        assert said in errors


def test_a_process_that_waits_for_a_leader_reports_its_loss_and_stops_on_a_signal(tmp_path: Path) -> None:
    config, secret = with_rotten_votes(tmp_path), tmp_path / "secret"
    secret.write_bytes(b"s" * 32)
    secret.chmod(0o600)
    [nobody] = free_ports(1)
    peers = f'[peers.broker-a-n1]\naddress = "127.0.0.1:{nobody}"\n'
    waiting = Process(tmp_path, None, text=f'secret_file = "{secret}"\n{toml_of(config)}{peers}')
    assert waiting.process.stderr is not None
    assert any("event=directory_lost" in line for line in waiting.process.stderr), "it says what it lost"
    code, _ = waiting.end(signal.SIGTERM)
    assert code == 0
    assert not (config.data_dir / "aside-0").exists()


@pytest.mark.parametrize("key", ["advertised_host", "host", "peer_host"])
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_with_an_unknown_own_name_waits_and_stops_on_a_signal(
    tmp_path: Path, key: str, signal_number: signal.Signals
) -> None:
    data = tmp_path / "data"
    text = f"broker_group = 'b'\nnode_id = 'n'\ndata_dir = '{data}'\n{key} = 'mq-0.mq.invalid'\nhttp_port = 0\n"
    if key != "advertised_host":
        text += "advertised_host = '127.0.0.1'\n"
    waiting = Process(tmp_path, None, "--bootstrap", text=text)
    assert waiting.process.stderr is not None
    line = next(line for line in waiting.process.stderr if "event=waits_for_name" in line)
    assert f"key={key} host='mq-0.mq.invalid'" in line
    assert "this process starts once the name is known" in line
    assert waiting.end(signal_number)[0] == 0
    assert not data.exists()


async def test_the_stop_report_follows_what_the_stop_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "STOP_REPORT_S", 0.001)
    file, waits_for = tmp_path / "stopping", "300 files"
    report = StopReport(tmp_path, lambda: waits_for)
    report.begin()
    await until(lambda: file.exists() and file.read_text() == "300 files\n")
    waits_for = "8 files"
    await until(lambda: file.exists() and file.read_text() == "8 files\n")
    await report.end()
    assert not file.exists()


async def test_a_stop_report_that_cannot_be_written_does_not_prevent_the_stop(tmp_path: Path) -> None:
    report = StopReport(tmp_path / "gone", lambda: "300 files")
    report.begin()
    await report.end()
