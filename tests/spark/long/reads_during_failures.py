"""A job over millions of messages reads followers during sends and leader kills, and misses nothing.

`DLEDGER_MESSAGES` sets the number (5,000,000 by default). They are sent while leaders are killed. Then the job reads
them all, while more are sent to the same topic and leaders are killed. The job must find exactly what was acknowledged,
by count and by hash of the values.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from hashlib import md5
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from dledger_client import MessageQueue, Producer, SyncAdmin
from dledger_client.testing import LocalCluster

MESSAGES = int(os.environ.get("DLEDGER_MESSAGES", "5_000_000"))
QUEUES = 8
TOPIC = "millions"
SEND_TIMEOUT_SECONDS = 60.0
BATCH = 400
BATCHES_AT_ONCE = 16
KILL_EVERY_SECONDS = 8.0
LATER_PAUSE_SECONDS = 0.1
"""Pause in seconds between batches while the job reads, to leave it the cores."""
FIRST_LATER_NUMBER = 1_000_000_000


class Digest(NamedTuple):
    """Digest of a multiset of values: their number, and the sum of the first 60 bits of their MD5."""

    count: int
    total: int


def body(number: int) -> bytes:
    return b"%010d" % number


def digest(numbers: range) -> Digest:
    return Digest(len(numbers), sum(int(md5(body(number)).hexdigest()[:15], 16) for number in numbers))


def send(namesrv: str, first: int, count: int | None, stop_file: str) -> int:
    """Send messages numbered from `first` on, until there are `count` or `stop_file` exists. Return their number.

    All of them are acknowledged, each once: repeated attempts are idempotent.
    """

    async def send_all() -> int:
        sent = 0
        room = asyncio.Semaphore(BATCHES_AT_ONCE)
        async with Producer(namesrv, group="millions", idempotent=True, timeout=SEND_TIMEOUT_SECONDS) as producer:
            queues = await producer.queues(TOPIC)

            async def batch(numbers: range, queue: MessageQueue) -> None:
                async with room:
                    await producer.send_batch(TOPIC, [body(number) for number in numbers], queue=queue)

            async with asyncio.TaskGroup() as tasks:
                while (count is None and not Path(stop_file).exists()) or (count is not None and sent < count):
                    size = BATCH if count is None else min(BATCH, count - sent)
                    async with room:  # limits the tasks to the number of batches under way
                        numbers = range(first + sent, first + sent + size)
                    tasks.create_task(batch(numbers, queues[sent // BATCH % len(queues)]))
                    await asyncio.sleep(0 if count is not None else LATER_PAUSE_SECONDS)
                    sent += size
        return sent

    return asyncio.run(send_all())


@contextmanager
def killed_leaders(cluster: LocalCluster) -> Iterator[list[str]]:
    """Kill the leader and start it again, over and over. Yield the list of nodes killed so far."""
    killed: list[str] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def kill() -> None:
        try:
            while not done.wait(KILL_EVERY_SECONDS):
                killed.append(cluster.kill_leader())
                cluster.leader()
                cluster.restart(killed[-1])
                cluster.wait_ready()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        done.set()
        thread.join()
    if failures:
        raise failures[0]


def leaders_served_bytes(cluster: LocalCluster) -> float:
    """Return the bytes of the log that nodes have served as leaders since their last start."""
    total = 0.0
    for node_id in cluster.node_ids:
        host, port = cluster.client_address(node_id).split(":")
        text = urllib.request.urlopen(f"http://{host}:{int(port) + 2}/metrics").read().decode()
        figures = dict(re.findall(r"^dledger_broker_(\w+)_total\{.*\} (\S+)$", text, re.MULTILINE))
        total += float(figures["range_bytes_leader"])
    return total


@pytest.mark.long
def test_a_job_reads_all_acknowledged_messages_during_leader_kills(spark: SparkSession, tmp_path: Path) -> None:
    stop_file = str(tmp_path / "stop")
    with LocalCluster() as cluster, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as sender:
        with SyncAdmin(cluster.namesrv) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        began = time.monotonic()
        with killed_leaders(cluster) as killed_while_sending:
            assert sender.submit(send, cluster.namesrv, 0, MESSAGES, stop_file).result() == MESSAGES
        sent_at = time.monotonic()
        later = sender.submit(send, cluster.namesrv, FIRST_LATER_NUMBER, None, stop_file)
        with killed_leaders(cluster) as killed_while_reading:
            options = {"namesrv": cluster.namesrv, "subscribe": TOPIC, "columns": "value", "readTimeout": "120s"}
            number = f.col("value").cast("string").cast("long")
            hashed = f.conv(f.substring(f.md5("value"), 1, 15), 16, 10).cast("decimal(38,0)")
            rows = spark.read.format("dledger").options(**options).load()
            counted = rows.groupBy((number < FIRST_LATER_NUMBER).alias("first")).agg(
                f.count("*"), f.sum(hashed), f.max(number)
            )
            found = {row["first"]: row[1:] for row in counted.collect()}
        read_at = time.monotonic()
        Path(stop_file).touch()
        sent_later = later.result()
        print(
            f"{MESSAGES:,} messages sent in {sent_at - began:.0f} s over {len(killed_while_sending)} kills of leaders, "
            f"read in {read_at - sent_at:.0f} s over {len(killed_while_reading)} kills while {sent_later:,} were sent"
        )
        assert Digest(int(found[True][0]), int(found[True][1])) == digest(range(MESSAGES))
        assert found.get(False, (0,))[0] <= sent_later
        assert leaders_served_bytes(cluster) == 0
    assert len(killed_while_sending) + len(killed_while_reading) >= 2
