"""A run on real processes is valid. It is invalid if the nodes have a bug."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger_admin.cluster.ports import has_ended
from dledger_chaos.cli import EXIT_CODES
from dledger_chaos.cli import chaos as command_line
from dledger_chaos.run import RunOptions, _Trial

pytestmark = pytest.mark.long

RUN_S = 200.0


def chaos(out: Path, *arguments: str) -> tuple[int, str, Path]:
    """Run once, and return the exit code, the output, and the run's directory."""
    command = [sys.executable, "-m", "dledger_admin", "chaos", "run", "--out", str(out), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=RUN_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # the run then stops its cluster
            said, _ = process.communicate(timeout=RUN_S)
            pytest.fail(f"the run took longer than {RUN_S:g} s: {said}")
    (directory,) = out.iterdir()
    return process.returncode, said, directory


def events(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def test_a_run_of_every_family_is_valid_and_leaves_no_process(tmp_path):
    faults = "kill-all,partition-leader,power-loss-all,fsync-fails,clock-jump"
    code, said, directory = chaos(
        tmp_path, "--minutes", "0.4", "--seed", "3", "--faults", faults, "--workloads", "append"
    )
    assert code == EXIT_CODES["valid"], said
    assert (directory / "report.html").stat().st_size > 0
    seen = events(directory)
    struck = [event["name"] for event in seen if event["kind"] == "fault-end"]
    assert struck
    assert set(struck) <= set(faults.split(","))
    assert [event["name"] for event in seen if event["kind"] == "phase"][-1] == "stopped"
    assert not [event["name"] for event in seen if event["kind"] == "note" and "workload" in event["name"]]
    assert not (directory / "cluster").exists(), "the data of a valid run is removed"
    for event in seen:
        if event["kind"] == "process":
            assert has_ended(event["fields"]["pid"])


def test_the_workload_that_trims_the_log_ends_last(tmp_path):
    names = ("retention", "delays", "append")
    trial = _Trial(RunOptions(tmp_path, "", "local", 1, 1.0, (), names), print)
    assert [workload.name for workload in trial._workloads] == ["delays", "append", "retention"]


def test_nodes_that_acknowledge_too_early_are_convicted(tmp_path):
    arguments = ("--minutes", "0.3", "--seed", "1", "--workloads", "append", "--faults", "partition-leader")
    code, said, directory = chaos(tmp_path, *arguments, "--mutant", "send-answered-when-staged")
    assert code == EXIT_CODES["invalid"], said
    assert any(line.startswith("invalid  lost ") for line in said.splitlines()), said
    assert (directory / "cluster" / "data").is_dir(), "what convicts is kept"


def test_registers_on_the_bare_log_stay_linearizable_over_power_losses(tmp_path):
    arguments = ("--minutes", "0.2", "--seed", "1", "--target", "register", "--workloads", "registers")
    code, said, directory = chaos(tmp_path, *arguments, "--faults", "power-loss-all,kill-leader,partition-leader")
    assert code == EXIT_CODES["valid"], said
    assert "power-loss-all" in {event["name"] for event in events(directory) if event["kind"] == "fault-end"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--faults", "earthquake"), "there is no fault or family 'earthquake'"),
        (("--workloads", "nothing"), "there is no workload 'nothing'"),
        (("--workloads", "registers"), "workload registers cannot run: the target lacks register"),
        (("--mutant", "nothing"), "there is no mutant 'nothing'"),
    ],
)
def test_a_run_that_cannot_start_is_unknown_and_tells_why(tmp_path, arguments, words):
    result = CliRunner().invoke(command_line, ["run", "--out", str(tmp_path), "--minutes", "0.1", *arguments])
    assert result.exit_code == EXIT_CODES["unknown"]
    assert f"not run: {words}" in result.output


def test_a_run_that_is_told_to_stop_stops_its_processes(tmp_path):
    command = [sys.executable, "-m", "dledger_admin", "chaos", "run", "--out", str(tmp_path), "--faults", "none"]
    with subprocess.Popen(
        [*command, "--workloads", "append"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            if line.startswith("injecting"):
                process.terminate()
                break
        said = process.stdout.read()
    assert process.returncode == EXIT_CODES["unknown"]
    assert said.endswith("stopped before its end: nothing was judged\n")
    started = [event["fields"]["pid"] for event in events(next(tmp_path.iterdir())) if event["kind"] == "process"]
    assert len(started) >= 3
    assert not [pid for pid in started if not has_ended(pid)]
