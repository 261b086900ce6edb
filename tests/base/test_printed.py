"""The file of a process's output is rotated by size, and no other file is touched."""

import logging
import os
import sys

from dledger_base.printed import PrintedLines


def test_standard_output_and_error_turn_over_together_and_another_file_stays(tmp_path):
    path, other = tmp_path / "stdout.log", tmp_path / "other.log"
    child = os.fork()
    if child == 0:  # in a process with descriptors of its own
        with path.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        lines = PrintedLines(path, 1_000)
        for number in range(100):
            lines.emit(logging.LogRecord("x", logging.WARNING, "", 0, f"line {number} {'.' * 80}", None, None))
        os.write(1, b"printed\n")
        unnamed = PrintedLines(other, 1)
        unnamed.emit(logging.LogRecord("x", logging.WARNING, "", 0, "last", None, None))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(found.name for found in tmp_path.iterdir()) == ["stdout.log", "stdout.log.1"]
    assert all(found.stat().st_size < 1_200 for found in tmp_path.iterdir())
    text = path.read_text()
    assert text.endswith("printed\nlast\n")
