"""Room for a cluster on a file system, checked before its processes are started."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

WATERMARK: Final = 0.75
"""Maximum used share of a file system. Above it nodes warn, unless `disk_max_used_ratio` says otherwise."""
MIB: Final = 1 << 20
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk."""


class Room(NamedTuple):
    """Space of a directory's file system, and the texts of a start about it.

    `lack` says that there is too little for the plan, `warning` that nodes will warn. Both say what to do.
    """

    free_bytes: int
    total_bytes: int
    lack: str | None
    warning: str | None


def look_for_room(directory: Path, needed_bytes: int, purpose: str) -> Room:
    """Look at the file system of `directory`, which may not exist yet. `purpose` needs about `needed_bytes`.

    Raises `OSError` if the file system does not report its space.
    """
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    found = os.statvfs(existing)
    free, total = found.f_bavail * found.f_frsize, (found.f_blocks - found.f_bfree + found.f_bavail) * found.f_frsize
    where = f"the file system of {directory} has {free // MIB} MiB free of {total // MIB} MiB"
    lack = warning = None
    if free < needed_bytes:
        lack = (
            f"{where}, and {purpose} takes about {needed_bytes // MIB} MiB: make room there, or use another directory"
        )
    elif total and 1 - free / total > WATERMARK:
        warning = (
            f"{where}, {1 - free / total:.0%} are used: above {WATERMARK:.0%} nodes warn, and expired messages go at "
            f"once; {purpose} takes about {needed_bytes // MIB} MiB, so that it can run"
        )
    return Room(free, total, lack, warning)
