"""Meter of the CPU time, memory and disk reads of broker processes, read from /proc (Linux)."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from bench.results import NodeUsage


def cpu_seconds(pid: int) -> float:
    """Return the CPU time in seconds of all live threads of `pid`, to the nanosecond. /proc/PID/stat has steps of 10
    ms.
    """
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread ended after the listing
            continue
    return total_ns / 1e9


def family_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants, ended ones included, in steps of 10 ms."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        member = int(status.parent.name)
        children.setdefault(int(fields[1]), []).append(member)
        ticks[member] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        member = waiting.pop()
        total += ticks.get(member, 0)
        waiting += children.get(member, [])
    return total / os.sysconf("SC_CLK_TCK")


def anonymous_rss_mb(pid: int) -> float:
    """Return RssAnon in MB: the process's own memory, without mapped files and the page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon line: Linux 4.5 or newer needed")


def disk_read_mb(pid: int) -> float:
    """Return how much was read from the disk for the process so far, in MB, without hits in the page cache."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1]) / 1e6
    raise RuntimeError(f"/proc/{pid}/io has no read_bytes line: Linux with CONFIG_TASK_IO_ACCOUNTING needed")


class UsageMeter:
    """Samples the processes of a group, the leader's first, at the two edges of a measurement."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = list(pids)
        self._began_at = self._elapsed_s = 0.0
        self._cpu_s: list[float] = []
        self._rss_mb: list[float] = []

    def begin(self) -> None:
        """Take the first sample."""
        self._began_at = time.monotonic()
        self._cpu_s = [cpu_seconds(pid) for pid in self._pids]

    def end(self) -> None:
        """Take the last sample."""
        self._elapsed_s = time.monotonic() - self._began_at
        self._cpu_s = [cpu_seconds(pid) - before for pid, before in zip(self._pids, self._cpu_s, strict=True)]
        self._rss_mb = [anonymous_rss_mb(pid) for pid in self._pids]

    def nodes(self, messages: int) -> list[NodeUsage]:
        """Return the usage of each process while `messages` were handled (0 when idle)."""
        return [
            NodeUsage(
                role="leader" if number == 0 else "follower",
                cpu_us_per_message=round(cpu * 1e6 / messages, 3) if messages else 0.0,
                cpu_share=round(cpu / self._elapsed_s, 5),
                rss_anon_mb=round(rss, 1),
            )
            for number, (cpu, rss) in enumerate(zip(self._cpu_s, self._rss_mb, strict=True))
        ]
