"""A log that is much larger than the memory is read while the executors' memory stays flat.

`DLEDGER_LOG_GB` sets the size (20 by default). One of the three nodes is stopped first, so that the disk holds the log
twice and not three times.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import SparkSession

from dledger_client import MessageQueue, Producer, SyncAdmin
from dledger_client.testing import LocalCluster

LOG_GB = float(os.environ.get("DLEDGER_LOG_GB", "20"))
TOPIC = "large"
QUEUES = 4
VALUE_BYTES = 32 << 10
BATCH = 24
BATCHES_AT_ONCE = 12
WORKER_BOUND_MB = 300
"""Maximum memory of a Python worker in MB, for any size of the log: an answer, its rows, and two batches under way."""


async def fill(namesrv: str, count: int) -> None:
    """Send `count` batches of messages."""
    room = asyncio.Semaphore(BATCHES_AT_ONCE)
    async with Producer(namesrv, group="large", timeout=60) as producer:
        queues = await producer.queues(TOPIC)

        async def batch(number: int, queue: MessageQueue) -> None:
            async with room:
                value = number.to_bytes(8, "big") * (VALUE_BYTES // 8)
                await producer.send_batch(TOPIC, [value] * BATCH, queue=queue)

        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                async with room:  # limits the tasks to the number of batches under way
                    pass
                tasks.create_task(batch(number, queues[number % len(queues)]))
                await asyncio.sleep(0)


class WorkerMemory:
    """Sampler of the memory of this session's Python workers while it is entered. It keeps the maximum, in bytes."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(0.2):
            children: dict[int, list[int]] = {}
            for status in Path("/proc").glob("[0-9]*/stat"):
                try:
                    parent = int(status.read_text().rpartition(")")[2].split()[1])
                except (OSError, ValueError):
                    continue
                children.setdefault(parent, []).append(int(status.parent.name))
            waiting = [os.getpid()]
            while waiting:
                process = waiting.pop()
                waiting += children.get(process, [])
                self._look_at(process)

    def _look_at(self, process: int) -> None:
        try:
            if Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[2] == b"pyspark.daemon":
                lines = Path(f"/proc/{process}/status").read_text().splitlines()
                anonymous = next(line for line in lines if line.startswith("RssAnon:"))
                self.peak_bytes = max(self.peak_bytes, int(anonymous.split()[1]) * 1024)
        except (OSError, IndexError, StopIteration):
            pass  # the worker has ended meanwhile


@pytest.mark.long
def test_a_log_of_any_size_is_read_in_the_same_memory(spark: SparkSession) -> None:
    batches = int(LOG_GB * 1e9 / (BATCH * VALUE_BYTES))
    with LocalCluster(config='flush = "async"\n') as cluster, WorkerMemory() as memory:
        with SyncAdmin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        cluster.kill(next(node for node in cluster.node_ids if node != cluster.leader()))
        began = time.monotonic()
        asyncio.run(fill(cluster.namesrv, batches))
        sent_at = time.monotonic()
        rows = spark.read.format("dledger").options(namesrv=cluster.namesrv, subscribe=TOPIC, columns="value,offset")
        found = rows.load().selectExpr("count(*)", "sum(length(value))", "sum(offset)").first()
        read_at = time.monotonic()
    print(
        f"{LOG_GB:g} GB sent in {sent_at - began:.0f} s, read in {read_at - sent_at:.0f} s; "
        f"a Python worker held {memory.peak_bytes / 1e6:.0f} MB at most"
    )
    assert found is not None
    assert found[:2] == (batches * BATCH, batches * BATCH * VALUE_BYTES)
    assert 0 < memory.peak_bytes < WORKER_BOUND_MB * 1_000_000
