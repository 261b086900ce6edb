"""First use of the command: progress, ends, narrow terminals, failures."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from io import StringIO
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from dledger_admin.cli import main
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.live import status_table
from dledger_admin.demo import run as demo_run
from dledger_admin.errors import AdminError
from dledger_admin.progress import INTERVAL_S, Progress, WatchedDisk


def test_progress_is_told_every_few_seconds_and_not_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = count(0.0, INTERVAL_S / 2)
    shown = Progress(clock=lambda: next(seconds))
    for step in range(6):
        shown.tell(f"step {step}")
    assert 1 <= len(capsys.readouterr().err.splitlines()) < 6


def test_reads_of_a_watched_directory_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    told: list[int] = []
    file = WatchedDisk(str(tmp_path), told.append).open("file")
    assert [file.pread(4, 0), file.pread(4, 4)] == [b"0123", b"4567"]
    file.close()
    assert told == [4, 8]


def test_a_closed_output_pipe_ends_a_command_without_an_error() -> None:
    """An example is `dledger consume | head`."""
    program = "from dledger_admin.output import write_out\nwhile True: write_out(b'line\\n')"
    code = f"import click\n@click.command()\ndef c():\n    {program.replace(chr(10), chr(10) + '    ')}\nc()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "line\n"
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == ("", 0)


class _Cluster:
    """The part of a running cluster that the table shows."""

    def __init__(self, data: Path) -> None:
        self.layout = ClusterLayout(data)

    def exited(self) -> dict[str, int]:
        return {"broker-a-n1": -9}


def test_up_cuts_no_word_on_40_columns(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=40)
    console.print(status_table(_Cluster(tmp_path), {}, console.width))  # type: ignore[arg-type]
    assert isinstance(console.file, StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert lines[0] == ["process", "role", "lag"]
    assert ["broker-a-n1", "ended,", "exit", "code", "-9", "-"] in lines


def test_a_demo_that_fails_leaves_nothing_and_names_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(files: object, work_dir: Path, bars: object) -> None:
        (work_dir / "cluster").mkdir()
        raise AdminError("broker-a-n0 ended with exit code 3: its disk failed")

    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a.py").write_text("x = 1\n")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(demo_run, "run_demo", fail)
    result = CliRunner().invoke(main, ["demo", "--input", str(tmp_path / "input")])
    assert (result.exit_code, "its disk failed" in result.stderr) == (1, True)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_failed_demo_reports_why_its_nodes_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "fetch_all", lambda places: {})
    [trouble] = demo_run._find_troubles(_Cluster(tmp_path))  # type: ignore[arg-type]
    assert trouble == "broker-a-n1 ended with exit code -9: it printed nothing"
