"""Files of the data directory that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

from dledger.loop_guard import disk_work


def replace_file(path: Path, body: bytes) -> None:
    """Let a file have this content, durably: after a crash it has this or its former one.

    Blocks, so it belongs on a thread of its own. Raises `OSError`.
    """
    disk_work("replace", str(path))
    scratch = path.with_suffix(".tmp")
    with scratch.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
