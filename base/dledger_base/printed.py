"""Printed output of a process, if it goes to a file: the file turns over like a log, so that no stranger fills the
disk.

`dledger up` lets its processes print into `log/stdout.log` and names the file to them. Only the process itself can turn
it over: it renames the file, opens it anew, and redirects its standard output and error there.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from pathlib import Path
from typing import Final, TextIO

from dledger_base.logs import LOG_FILE_BYTES

OUTPUTS: Final = (1, 2)
"""Descriptors of standard output and standard error."""


class PrintedLines(logging.StreamHandler[TextIO]):
    """Writes lines to standard error. `path` is the file behind it, if one was named; one older file is kept."""

    def __init__(self, path: Path | None, most_bytes: int = LOG_FILE_BYTES) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._most_bytes = most_bytes

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Called on one thread."""
        super().emit(record)
        if self._path is not None:
            try:
                _turn_over(self._path, self._most_bytes)
            except OSError:
                return  # On a full disk, or if the folder is gone, the next line tries again.


def _turn_over(path: Path, most_bytes: int) -> None:
    descriptors = [number for number in OUTPUTS if _is_open_at(number, path)]
    if not descriptors or os.fstat(descriptors[0]).st_size < most_bytes:
        return
    mode = stat.S_IMODE(os.fstat(descriptors[0]).st_mode)
    path.replace(path.with_name(f"{path.name}.1"))
    new_file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
    try:
        for number in descriptors:
            os.dup2(new_file, number)
    finally:
        os.close(new_file)


def _is_open_at(number: int, path: Path) -> bool:
    """Return whether a descriptor is that of the regular file at a path."""
    try:
        status = os.fstat(number)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.stat())
    except OSError:
        return False
