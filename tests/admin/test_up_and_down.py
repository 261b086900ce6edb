"""`up`, `down` and `node` from the user's view, with stand-ins for the processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from cluster_checks import wait_until
from rich.console import Console

from dledger_admin.cli import main
from dledger_admin.cluster import lifecycle, processes
from dledger_admin.cluster.lifecycle import RunningCluster, services
from dledger_admin.cluster.live import show_changes, status_table
from dledger_admin.cluster.manifest import read_manifest
from dledger_admin.commands import up
from dledger_admin.demo.run import _running_cluster
from dledger_admin.errors import StartError

pytestmark = [pytest.mark.usefixtures("stub_processes"), pytest.mark.long]


class Dledger:
    """Runner of `dledger` commands on one cluster directory, in this process."""

    def __init__(self, data: Path, base_port: int, namesrv_port: int) -> None:
        self.data = data
        self._up = ("--namesrv-port", str(namesrv_port), "--base-port", str(base_port), "--detach")

    def __call__(self, *arguments: str):
        return CliRunner().invoke(main, list(arguments))

    def up(self, *more: str):
        return self("up", "--data", str(self.data), *self._up, *more)

    def services(self):
        return services(read_manifest(self.data).layout(self.data))

    def pids(self) -> dict[str, int | None]:
        return {name: service.pid() for name, service in self.services().items()}


@pytest.fixture
def dledger(tmp_path, ports):
    cluster = Dledger(tmp_path / "cluster", *ports)
    yield cluster
    if read_manifest(cluster.data):
        for pid in cluster.pids().values():
            if pid:
                os.kill(pid, signal.SIGKILL)


def test_up_starts_every_process_and_down_stops_them_all(dledger):
    started = dledger.up("-o", "json")
    assert started.exit_code == 0, started.output
    assert json.loads(started.output)["leaders"] == {"broker-a": "broker-a-n0"}
    assert all(dledger.pids().values())
    stopped = dledger("down", "--data", str(dledger.data), "-o", "json")
    assert json.loads(stopped.output) == {"stopped": sorted(dledger.services()), "killed": []}
    assert not any(dledger.pids().values())


def test_the_pid_file_holds_the_new_pid_during_a_start(tmp_path, monkeypatch):
    (tmp_path / "pid").write_text("1234567890\n")  # left by a dead process
    truncate, found = os.ftruncate, []

    def look_before(descriptor: int, size: int) -> None:
        found.append((tmp_path / "pid").read_text().split()[0])
        truncate(descriptor, size)

    monkeypatch.setattr(os, "ftruncate", look_before)
    process = processes.Service("n0", "dledger_broker", tmp_path / "broker.toml").spawn()
    process.kill()
    process.wait()
    assert found == [str(process.pid)] == (tmp_path / "pid").read_text().split()


def test_up_waits_until_the_leader_reports_ready(dledger):
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    (dledger.data / "broker-a-n0" / "unready-answers").write_text("3")
    again = dledger.up()
    assert again.exit_code == 0, again.output
    assert (dledger.data / "broker-a-n0" / "unready-answers").read_text() == "0"


def test_up_waits_for_a_node_that_does_not_answer_yet(dledger, monkeypatch):
    ask, rounds = lifecycle.fetch_all, []

    def ask_early(places):
        rounds.append(ask(places))
        return rounds[-1] | ({"broker-a-n2": None} if len(rounds) == 1 else {})

    dledger.up()
    monkeypatch.setattr(lifecycle, "fetch_all", ask_early)
    running = RunningCluster(read_manifest(dledger.data).layout(dledger.data))
    assert list(running.await_leaders()) == ["broker-a"]
    assert len(rounds) >= 2
    rounds.clear()
    assert list(running.await_leaders(timeout_s=0.0)) == ["broker-a"]


def test_up_and_status_name_nodes_with_full_disks(dledger):
    dledger.up()
    for name in ("broker-a-n0", "broker-a-n1"):
        (dledger.data / name / "refusal").write_text(f"the disk of {name} is full; make room there")
    shown = dledger("status", "--data", str(dledger.data)).output
    dledger("down", "--data", str(dledger.data))
    again = dledger.up()
    assert again.exit_code == 0, again.output
    for name in ("broker-a-n0", "broker-a-n1"):
        assert f"{name}: the disk of {name} is full; make room there" in shown
        assert f"warning: {name}: the disk of {name} is full; make room there" in again.output


def test_a_start_that_takes_too_long_tells_why_the_leader_is_not_ready(dledger):
    dledger.up()
    (dledger.data / "broker-a-n0" / "unready-answers").write_text("1")
    running = RunningCluster(read_manifest(dledger.data).layout(dledger.data))
    with pytest.raises(StartError, match=r"broker-a had no leader .* further for 0 s; broker-a: not listed yet"):
        running.await_leaders(timeout_s=0.0)


def test_a_process_that_ignores_the_signals_is_killed_and_named(dledger, monkeypatch):
    dledger.up()
    (dledger.data / "broker-a-n2" / "stubborn").touch()
    service = dledger.services()["broker-a-n2"]
    assert processes.stop_at_once({"broker-a-n2": service}, timeout_s=0.3) == ["broker-a-n2"]
    assert service.pid() is None


def test_a_stop_waits_beyond_its_timeout_for_a_process_that_makes_progress(dledger, monkeypatch):
    monkeypatch.setattr(processes, "SAY_AFTER_S", 0.3)
    dledger.up()
    (dledger.data / "broker-a-n2" / "slow-steps").write_text("10")
    service, said = dledger.services()["broker-a-n2"], []
    assert processes.stop_at_once({"broker-a-n2": service}, timeout_s=1.5, say=said.append) == []
    assert service.pid() is None
    assert any(line.endswith("files are to be synced") for line in said)
    assert all(line.startswith("waiting for broker-a-n2: ") for line in said)


def test_a_graceful_stop_of_one_node_waits_while_the_node_makes_progress(dledger):
    dledger.up()
    (dledger.data / "broker-a-n2" / "slow-steps").write_text("10")
    service = dledger.services()["broker-a-n2"]
    assert processes.stop_gracefully(service, 1.5)
    assert service.pid() is None


def test_down_tells_which_node_and_work_delay_the_stop(dledger, monkeypatch):
    monkeypatch.setattr(processes, "SAY_AFTER_S", 0.1)
    dledger.up()
    (dledger.data / "broker-a-n2" / "slow-steps").write_text("3")
    stopped = dledger("down", "--data", str(dledger.data))
    assert stopped.exit_code == 0, stopped.output
    assert "waiting for broker-a-n2: 2 files are to be synced" in stopped.output


def test_down_names_a_process_that_belongs_to_another_user(dledger, monkeypatch):
    dledger.up()
    pid = dledger.pids()["namesrv"]

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as another_user:
        another_user.setattr(os, "kill", refuse)
        refused = dledger("down", "--data", str(dledger.data))
    assert refused.exit_code == 1
    assert refused.output == f"Error: process {pid} belongs to another user: stop it as that one\n"


def test_a_process_that_is_ending_still_has_its_ports(tmp_path, monkeypatch):
    service = processes.Service("broker-a-n0", "dledger_broker", tmp_path / "broker.toml")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        monkeypatch.setattr(processes, "command_line", lambda _: None)  # an ending process loses its command line first
        assert processes._is_alive(child.pid, service)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not processes._is_alive(child.pid, service)
    assert not processes._is_alive(child.pid, service)


def test_reading_a_pid_file_waits_for_the_command_line_of_a_new_process(tmp_path, monkeypatch):
    """On a busy machine a new process can lack its command line for more than 100 ms. `down` would ignore it."""
    service = processes.Service("broker-a-n0", "dledger_broker", tmp_path / "broker.toml")
    command = [sys.executable, "-c", "input()", "--config", str(service.config_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        (tmp_path / "pid").write_text(f"{child.pid}\n")
        assert service.pid() == child.pid
        begins_at, find = time.monotonic() + 0.3, processes.command_line
        monkeypatch.setattr(
            processes, "command_line", lambda pid: (time.monotonic() >= begins_at and find(pid)) or None
        )
        assert service.pid() == child.pid
        begins_at = float("inf")
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert service.pid() is None


def test_a_start_without_a_majority_fails_with_the_nodes_output_and_stops_all(dledger):
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    for node_id in ("broker-a-n1", "broker-a-n2"):
        (dledger.data / node_id / "fail").touch()
    failed = dledger.up()
    assert failed.exit_code == 1
    assert "2 of 3 nodes of broker-a ended (exit code 3)" in failed.output
    words = f"broker-a-n1: cannot start: the disk is a cheese ({dledger.data}/broker-a-n1/log/stdout.log)"
    assert words in failed.output
    assert not any(dledger.pids().values())


def test_up_succeeds_with_a_warning_if_one_node_of_three_is_broken(dledger):
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    (dledger.data / "broker-a-n2" / "fail").touch()
    started = dledger.up()
    assert started.exit_code == 0, started.output
    assert "warning: broker-a-n2 ended with exit code 3" in started.output


def test_an_up_overtaken_by_another_up_leaves_the_running_cluster_alone(dledger, monkeypatch):
    @contextmanager
    def another_up_first(data):
        with monkeypatch.context() as this:
            this.setattr(up, "up_lock", lifecycle.up_lock)
            assert dledger.up().exit_code == 0
        with lifecycle.up_lock(data):
            yield

    monkeypatch.setattr(up, "up_lock", another_up_first)
    overtaken = dledger.up()
    assert overtaken.exit_code == 1
    assert "running already: namesrv" in overtaken.output
    assert all(dledger.pids().values())


def test_down_stops_processes_that_are_still_starting(dledger):
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    for name in dledger.services():
        (dledger.data / name / "hangs").touch()
    RunningCluster(read_manifest(dledger.data).layout(dledger.data)).spawn()
    stopped = dledger("down", "--data", str(dledger.data), "-o", "json")
    assert json.loads(stopped.output)["stopped"] == sorted(dledger.services())


def test_a_second_start_does_not_hide_the_running_process(dledger):
    dledger.up()
    service = dledger.services()["broker-a-n1"]
    runs = service.pid()
    process = service.spawn()
    assert service.pid() == runs
    assert process.wait(timeout=60) != 0


@pytest.fixture
def interrupted(monkeypatch):
    """Interrupt each start of a process by Ctrl-C right after it, and yield the started processes."""
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield started
    signal.signal(signal.SIGINT, before)
    for process in started:
        process.kill()
        process.wait()


def test_a_signal_in_the_middle_of_a_start_leaves_no_process(dledger, interrupted):
    assert dledger.up().exit_code == 1
    assert interrupted
    assert all(process.poll() is not None for process in interrupted)


def test_an_interrupted_node_start_stops_its_process_without_a_pid_file(dledger, request, monkeypatch):
    dledger.up()
    data = ("--data", str(dledger.data))
    dledger("node", "stop", *data, "broker-a-n1", "--now")
    started = request.getfixturevalue("interrupted")
    monkeypatch.setattr(processes, "_write_pid", lambda path, pid: None)  # as on a full disk
    assert dledger("node", "start", *data, "broker-a-n1", "--detach").exit_code == 1
    (process,) = started
    assert process.poll() is not None


def test_a_signal_in_the_middle_of_the_start_of_a_demonstration_leaves_no_process(tmp_path, interrupted):
    with pytest.raises(KeyboardInterrupt), _running_cluster(tmp_path):
        pass
    assert interrupted
    assert all(process.poll() is not None for process in interrupted)


def test_a_process_of_a_copied_cluster_directory_is_not_taken_for_a_node(dledger):
    """An operator copied a running cluster from /srv/mq to /mq, pid files included, and calls `down --data /mq`."""
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    service = dledger.services()["broker-a-n0"]
    command = [sys.executable, "-c", "input()", "--config", f"/srv{service.config_file}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as original:
        (service.directory / "pid").write_text(f"{original.pid}\n")
        assert service.pid() is None
        dledger("down", "--data", str(dledger.data))
        assert original.poll() is None
        original.kill()


def test_status_of_a_stopped_cluster_ignores_another_cluster_on_its_ports(dledger):
    dledger.up()
    copy = dledger.data.with_name("copy")
    shutil.copytree(dledger.data, copy)
    shown = json.loads(dledger("status", "--data", str(copy), "-o", "json").output)
    assert [(one["pid"], one["answers"], one.get("status")) for one in shown["processes"]] == [(None, False, None)] * 4
    assert shown["others"] == []


def test_node_start_refuses_a_copied_directory_until_up_rewrites_its_configuration(dledger):
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    copy = dledger.data.with_name("copy")
    shutil.copytree(dledger.data, copy)
    for name in ("broker-a-n0", "namesrv"):
        refused = dledger("node", "start", "--data", str(copy), name, "--detach")
        assert refused.exit_code == 1
        assert f"{copy / name} was moved or copied: its configuration is for {dledger.data / name}" in refused.output
    assert not any(dledger.pids().values())
    assert dledger("up", "--data", str(copy), "--detach").exit_code == 0
    assert dledger("node", "stop", "--data", str(copy), "namesrv").exit_code == 0
    assert dledger("node", "start", "--data", str(copy), "namesrv", "--detach").exit_code == 0
    assert dledger("down", "--data", str(copy)).exit_code == 0


def test_processes_import_no_modules_from_the_current_directory(dledger, tmp_path, monkeypatch):
    (tmp_path / "socketserver.py").write_text("raise SystemExit('a file of mine')")
    monkeypatch.chdir(tmp_path)
    started = dledger.up()
    assert started.exit_code == 0, started.output


def test_a_node_that_listens_on_another_address_is_asked_there(dledger, tmp_path):
    config = tmp_path / "config.toml"
    everywhere = 'host = "0.0.0.0"\nadvertised_host = "127.0.0.1"'
    config.write_text(f'[nodes.broker-a-n0]\nhost = "127.0.0.2"\n[nodes.broker-a-n1]\n{everywhere}\n')
    started = dledger.up("--config", str(config))
    assert started.exit_code == 0, started.output
    shown = json.loads(dledger("status", "--data", str(dledger.data), "-o", "json").output)
    assert all(one["answers"] for one in shown["processes"])


def test_status_shows_role_term_and_lag_of_each_node(dledger):
    dledger.up()
    shown = json.loads(dledger("status", "--data", str(dledger.data), "-o", "json").output)
    by_name = {process["name"]: process for process in shown["processes"]}
    assert by_name["broker-a-n0"]["status"]["role"] == "leader"
    assert by_name["broker-a-n1"]["lag"] == 3
    assert by_name["namesrv"]["pid"] == dledger.pids()["namesrv"]
    assert shown["others"] == [{"name": "broker-a-n3", "group": "broker-a", "standing": "voter"}]
    text = dledger("status", "--data", str(dledger.data)).output
    assert "leader" in text
    assert "follower" in text
    assert "broker-a-n3 is a voter of broker-a that `up` does not start" in text
    one = json.loads(dledger("node", "status", "--data", str(dledger.data), "broker-a-n1", "-o", "json").output)
    assert [(process["name"], process["lag"]) for process in one["processes"]] == [("broker-a-n1", 3)]


def test_status_of_a_whole_cluster_ends_with_0_and_with_3_when_anything_is_down(dledger):
    assert dledger.up().exit_code == 0
    data = ("--data", str(dledger.data))
    assert dledger("status", *data).exit_code == 0
    dledger("node", "stop", *data, "broker-a-n1", "--now")
    assert dledger("status", *data).exit_code == 3
    assert dledger("node", "status", *data).exit_code == 3
    assert dledger("node", "status", *data, "broker-a-n1").exit_code == 3
    assert dledger("node", "status", *data, "broker-a-n2").exit_code == 0
    dledger("down", *data)
    assert dledger("status", *data, "-o", "json").exit_code == 3


def test_status_of_a_group_without_a_leader_says_so_and_exits_with_3(dledger):
    dledger.up()
    (dledger.data / "broker-a-n0" / "never-leads").touch()
    shown = dledger("status", "--data", str(dledger.data))
    assert shown.exit_code == 3
    assert "broker-a has no leader that accepts writes" in shown.output
    assert dledger("node", "status", "--data", str(dledger.data), "broker-a-n0").exit_code == 0


def test_node_stop_drains_a_node_and_node_start_starts_the_node(dledger):
    dledger.up()
    (dledger.data / "broker-a-n1" / "drains-at-once").touch()
    stopped = dledger("node", "stop", "--data", str(dledger.data), "broker-a-n1")
    assert "broker-a-n1 drained and stopped" in stopped.output
    assert (dledger.data / "broker-a-n1" / "signals").read_text() == "TERM\n"
    started = dledger("node", "start", "--data", str(dledger.data), "broker-a-n1", "--detach", "-o", "json")
    assert json.loads(started.output)["pid"] == dledger.pids()["broker-a-n1"]


def test_a_wiped_node_directory_gets_its_configuration_and_no_identity(dledger):
    dledger.up()
    dledger("node", "stop", "--data", str(dledger.data), "broker-a-n1", "--now")
    shutil.rmtree(dledger.data / "broker-a-n1")
    started = dledger("node", "start", "--data", str(dledger.data), "broker-a-n1", "--detach")
    assert started.exit_code == 0, started.output
    assert (dledger.data / "broker-a-n1" / "broker.toml").exists()
    assert not (dledger.data / "broker-a-n1" / "identity.json").exists()


def test_an_up_in_the_foreground_also_watches_processes_that_were_restarted(dledger):
    data = ("--data", str(dledger.data))
    dledger.up()
    dledger("down", *data)
    running = RunningCluster(read_manifest(dledger.data).layout(dledger.data))
    running.spawn()
    wait_until(lambda: all(dledger.pids().values()), timeout_s=60)
    for name in dledger.pids():
        for command in (("stop", *data, name, "--now"), ("start", *data, name, "--detach")):
            done = dledger("node", *command)
            assert done.exit_code == 0, done.output
    assert running.exited().keys() == dledger.pids().keys()
    assert running.runs()
    dledger("down", *data)
    assert not running.runs()


def test_in_the_foreground_a_name_server_that_ended_is_shown(dledger):
    dledger.up()
    cluster = RunningCluster(read_manifest(dledger.data).layout(dledger.data))
    output = Console(file=StringIO(), width=100)
    show = show_changes(cluster, output)
    show({})
    dledger("node", "stop", "--data", str(dledger.data), "namesrv")
    show({})
    output.print(status_table(cluster, {}))
    lines = output.file.getvalue().splitlines()
    assert [line for line in lines if line.startswith("namesrv")] == ["namesrv serving", "namesrv no answer"]
    assert sum("namesrv" in line and "no answer" in line for line in lines) == 2


def up_in_a_process(dledger, tmp_path, *options):
    """Run `up` as a process of its own. Return it and its output once everything that it starts runs."""
    arguments = [*dledger._up[:-1], "--data", str(dledger.data), *options]
    # The stand-ins come first on the path of the processes that `up` starts, and last on its own path. The parent of
    # the tests may ignore signals: shells ignore SIGINT in the background, and nohup ignores SIGHUP.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        f"sys.path[:0] = {[path for path in sys.path if path]}; from dledger_admin.cli import main; main()"
    )
    shown = tmp_path / "shown"
    with shown.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", program, "up", *arguments], stdout=output, stderr=output)
    deadline = time.monotonic() + 60
    while not (read_manifest(dledger.data) and all(dledger.pids().values())):
        assert process.poll() is None, shown.read_text()
        assert time.monotonic() < deadline
    return process, shown


def test_in_the_foreground_a_signal_stops_everything(dledger, tmp_path):
    process, shown = up_in_a_process(dledger, tmp_path)
    assert wait_until(lambda: "broker-a-n0" in shown.read_text(), 60)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0, shown.read_text()
    assert not any(dledger.pids().values())


def test_a_swallowed_interrupt_still_ends_a_start(dledger, monkeypatch):
    def ask(places):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return {}

    monkeypatch.setattr(lifecycle, "fetch_all", ask)
    assert dledger.up().exit_code == 1
    assert not any(dledger.pids().values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_start_in_the_background_that_a_signal_ends_leaves_nothing(dledger, tmp_path, number):
    dledger.up()
    dledger("down", "--data", str(dledger.data))
    (dledger.data / "broker-a-n0" / "never-leads").touch()
    process, shown = up_in_a_process(dledger, tmp_path, "--detach")
    process.send_signal(number)
    assert process.wait(timeout=60) == 1, shown.read_text()
    assert not any(dledger.pids().values())


def test_up_under_nohup_outlives_its_terminal(dledger, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process, shown = up_in_a_process(dledger, tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert wait_until(lambda: "broker-a-n0" in shown.read_text(), 60)
    process.send_signal(signal.SIGHUP)
    assert dledger("node", "stop", "--data", str(dledger.data), "namesrv").exit_code == 0
    assert wait_until(lambda: "no answer" in shown.read_text(), 60), "it went on watching"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 0, shown.read_text()


def test_a_name_server_that_does_not_answer_is_not_said_to_serve(dledger):
    dledger.up()
    pid = dledger.pids()["namesrv"]

    def role() -> str:
        shown = dledger("status", "--data", str(dledger.data)).output.splitlines()
        return next(line for line in shown if line.startswith("namesrv"))

    assert "serving" in role()
    os.kill(pid, signal.SIGSTOP)
    assert "no answer" in role()
    os.kill(pid, signal.SIGCONT)
