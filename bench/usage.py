"""What a process uses, read from /proc (Linux)."""

from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all live threads of `pid`, to the nanosecond (the ticks in /proc/PID/stat are 10 ms)."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total_ns += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # the thread ended after the listing
            continue
    return total_ns / 1e9


def anonymous_rss_mb(pid: int) -> float:
    """Return RssAnon in MB: the memory that is the process's own, without mapped files and the page cache."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no RssAnon line: Linux 4.5 or newer needed")
