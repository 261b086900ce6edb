"""Measure of the time index: memory that pending rows cost a node, and the time of a start with them.

    .venv/bin/python -m bench.time_index [ROWS]

Rows are due within a day, in random order. The start is a process of its own: it opens the file, gets the first rows
that are due, and compares all rows with counters.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Final

from dledger.environment import AsyncioEnvironment
from dledger_broker.testing.node import FakeLog, FakeNode
from dledger_broker.views.databases import DatabaseFiles
from dledger_broker.views.logreader import LogReader
from dledger_broker.views.timefile import TimeFile
from dledger_broker.views.timefollower import WRITE_ROWS
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Counts, Row, RowChanges

DAY_MS: Final = 86_400_000
RECORD_BYTES: Final = 1000
STRETCH_BYTES: Final = 1 << 30


def rows_of(count: int) -> Iterator[Row]:
    """Yield `count` rows, in the order of the log."""
    rng = random.Random(1)
    for number in range(count):
        yield Row(rng.randrange(DAY_MS), number * RECORD_BYTES, RECORD_BYTES)


def fill(directory: str, count: int) -> float:
    """Write the rows as a node does. Returns the seconds that this took."""
    rows = list(rows_of(count))
    file = TimeFile(DatabaseFiles(directory))
    file.load("one")
    began = time.perf_counter()
    for begin in range(0, count, WRITE_ROWS):
        batch = rows[begin : begin + WRITE_ROWS]
        file.write([RowChanges(added=batch)], (begin + len(batch)) * RECORD_BYTES, 0, None)
    took = time.perf_counter() - began
    file.close()
    return took


class _Node:
    """A replica that has applied everything and has no log."""

    stretch_bytes = STRETCH_BYTES

    def __init__(self, env: AsyncioEnvironment, count: int) -> None:
        self.applied_position = count * RECORD_BYTES
        self.log = FakeNode(self, env, FakeLog())  # type: ignore[arg-type]  # nothing is applied
        self.log.durable_limit = self.applied_position
        self._count = count

    def decode(self, kind: int, payload: bytes | memoryview) -> RowChanges | None:
        """Return None: this log has no changes of rows."""
        _ = kind, payload
        return None

    def lowest(self) -> int | None:
        """Return the lowest position of a row."""
        return 0

    def pending(self) -> Counts:
        """Return the numbers and sizes of pending rows by stretch of the log."""
        counts: dict[int, tuple[int, int]] = {}
        for row in rows_of(self._count):
            start = row.position - row.position % STRETCH_BYTES
            rows, size = counts.get(start, (0, 0))
            counts[start] = rows + 1, size + row.size
        return counts


def resident_kib() -> int:
    """Return the resident memory of this process in KiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


async def start(directory: str, count: int) -> None:
    """Start with the file, and print how long that took."""
    env = AsyncioEnvironment(asyncio.get_running_loop())
    node = _Node(env, count)
    before_kib, began = resident_kib(), time.perf_counter()
    index = TimeIndex(DatabaseFiles(directory), env, LogReader(node), node, node)
    index.follower.incarnation = "one"
    index.restored(node.applied_position)
    index.follower.start()
    first = asyncio.Event()
    index.due(DAY_MS, 1000, lambda _: first.set())
    await first.wait()
    print(f"first rows after {time.perf_counter() - began:.2f} s")
    while index.follower.whole is None:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.01)
    print(f"compared after {time.perf_counter() - began:.2f} s, whole: {index.follower.whole}")
    print(f"memory: {(resident_kib() - before_kib) / 1024:.1f} MiB")
    await index.follower.close()


def main() -> None:
    """Fill a file, then start a process with it."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        asyncio.run(start(sys.argv[2], count))
        return
    with tempfile.TemporaryDirectory() as directory:
        print(f"{count} rows written in {fill(directory, count):.1f} s")
        subprocess.run([sys.executable, "-m", "bench.time_index", str(count), directory], check=True)


if __name__ == "__main__":
    main()
