"""Search for free ports and for the owners of those that are taken; what the system tells of a process."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ..errors import AdminError
from .layout import HOST

_LISTEN_STATE = "0A"
_SHOWN_CONFLICTS = 3


def is_free(port: int, host: str = HOST) -> bool:
    """Tell whether a listener could bind `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise AdminError(f"{host}:{port} cannot be listened on: {error.strerror}") from error
    return True


def require_free(ports: Iterable[tuple[int, str]]) -> None:
    """Raise `AdminError` naming each port that is taken, what wants it, and the process that has it."""
    taken = [(port, owner) for port, owner in ports if not is_free(port)]
    if not taken:
        return
    lines = [
        f"port {port} ({owner}) is in use by {describe_listener(port)}" for port, owner in taken[:_SHOWN_CONFLICTS]
    ]
    if len(taken) > _SHOWN_CONFLICTS:
        lines.append(f"{len(taken) - _SHOWN_CONFLICTS} more ports are in use")
    raise AdminError("; ".join(lines) + ": stop what uses them, or choose others with --base-port and --namesrv-port")


def describe_listener(port: int) -> str:
    """Return `pid 123 (command line)` of the process that listens on `port`, as far as the system tells."""
    pid = _find_listener_in_proc(port) if Path("/proc/net/tcp").exists() else _find_listener_by_lsof(port)
    if pid is None:
        return "a process that cannot be named from here"
    return f"pid {pid} ({command_line(pid) or 'unknown command'})"


def command_line(pid: int) -> str | None:
    """Return the command line of a process, None when it is gone or not ours to see."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip() or None
    except OSError:
        pass
    if Path("/proc/self").exists():
        return None
    return _read_output("ps", "-ww", "-o", "command=", "-p", str(pid))


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone with all its threads, or only waits to be collected by its parent.

    Nothing less frees its ports: a process that is ending loses its command line first, and its files with the last
    thread.
    """
    if not Path("/proc/self/stat").exists():
        state = _read_output("ps", "-o", "state=", "-p", str(pid))
        return state is None or state.startswith("Z")
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return True
    return not fields or fields[0] == "X" or (fields[0] == "Z" and threads <= 1)


def has_program(pid: int) -> bool:
    """Tell whether a process executes a program, or is about to and has no command line yet.

    False for a process that is ending, for a thread of the kernel, and where the system does not tell.
    """
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True


def bytes_read(pid: int) -> int | None:
    """Return how much a process has read from files and sockets, None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/io").read_text(encoding="ascii").split()
        return int(fields[fields.index("rchar:") + 1])
    except (OSError, ValueError, IndexError):
        return None


def _find_listener_in_proc(port: int) -> int | None:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            if fields[3] == _LISTEN_STATE and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if any(os.readlink(descriptor) in inodes for descriptor in (entry / "fd").iterdir()):
                return int(entry.name)
        except OSError:
            continue
    return None


def _find_listener_by_lsof(port: int) -> int | None:
    output = _read_output("lsof", "-nP", f"-iTCP:{port}", "-sTCP:LISTEN", "-Fp")
    pids = [line[1:] for line in (output or "").splitlines() if line.startswith("p")]
    return int(pids[0]) if pids else None


def _read_output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=5.0)
    return completed.stdout.strip() or None
