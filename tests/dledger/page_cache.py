"""Files that the page cache forgets, and the reads of a thread that this causes."""

import os
from pathlib import Path


def evict(path: Path) -> None:
    """Drop the pages of a file, or of all files of a directory, from the page cache, as memory pressure does."""
    for one in path.rglob("*") if path.is_dir() else [path]:
        if one.is_file():
            with one.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_from_disk() -> int:
    """Return the number of bytes that this thread has read from a disk."""
    counters = Path("/proc/thread-self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in counters)["read_bytes"])
