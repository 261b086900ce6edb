"""`dledger demo` leaves no process behind, at any kind of end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from dledger_admin.cluster.ports import has_ended

pytestmark = pytest.mark.long

SECONDS = 60.0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_a_signal_ends_leaves_no_process(tmp_path, number):
    text = tmp_path / "input"
    text.mkdir()
    (text / "long.py").write_text("x = 1\n" * 2_000_000)
    # The parent of the tests may ignore signals: shells ignore SIGINT in the background, and nohup ignores SIGHUP.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); from dledger_admin.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "demo", "--input", str(text)]
    with (
        (tmp_path / "shown").open("w+") as shown,
        subprocess.Popen(command, stdout=shown, stderr=shown, env={**os.environ, "TMPDIR": str(tmp_path)}) as process,
    ):
        started = _pids_of_the_cluster(tmp_path, process)
        process.send_signal(number)
        code = process.wait(SECONDS)
        shown.seek(0)
        assert code == 1, shown.read()
    assert not [pid for pid in started if not has_ended(pid)]


def _pids_of_the_cluster(directory: Path, process: subprocess.Popen[bytes]) -> list[int]:
    deadline = time.monotonic() + SECONDS
    while len(pids := [*map(int, _words(directory.glob("dledger-demo-*/cluster/*/pid")))]) < 4:
        assert process.poll() is None
        assert time.monotonic() < deadline, f"only {pids} so far"
        time.sleep(0.05)
    return pids


def _words(files: Iterable[Path]) -> list[str]:
    """Return the words in files. A file that was just created is empty."""
    return [word for file in files for word in file.read_text().split()]
