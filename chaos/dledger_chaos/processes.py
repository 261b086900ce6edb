"""Processes that the rig did not start itself: found by their pid file, signalled by pid, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dledger_admin.cluster.ports import has_ended

from .errors import TargetError

GONE_S: Final = 20.0
_POLL_S: Final = 0.01


def pid_in(file: Path, owner: str) -> int | None:
    """Return the pid in a pid file if its process runs and has `owner` in its command line, else None."""
    try:
        pid = int(file.read_text(encoding="ascii").split()[0])
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return None
    return pid if owner.encode() in words else None


def send(pid: int | None, number: signal.Signals) -> None:
    """Signal a process that may be gone already."""
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


async def wait_gone(pids: Sequence[int], timeout_s: float = GONE_S) -> None:
    """Wait until processes have ended; raises `TargetError`."""
    deadline = time.monotonic() + timeout_s
    while alive := [pid for pid in pids if not has_ended(pid)]:
        if time.monotonic() >= deadline:
            raise TargetError(f"processes {alive} have not ended within {timeout_s:g} s")
        await asyncio.sleep(_POLL_S)
