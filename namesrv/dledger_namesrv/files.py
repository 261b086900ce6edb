"""Replacement of whole files in the data directory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dledger_base.loop_guard import disk_work


def replace_file(path: Path, body: bytes | Iterable[bytes]) -> None:
    """Replace the content of a file, durably: after a crash the file has the new content or the former one.

    Pass a large body in pieces: while a piece is made or written, no other thread runs Python.

    Blocks, so it belongs on a thread of its own. Raises `OSError`.
    """
    disk_work("replace", str(path))
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        file.writelines((body,) if isinstance(body, bytes) else body)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
