"""Streams whose drivers and Python workers are killed again and again copy each row once.

One driver runs both streams, so that each kill hits both. `make test-spark-kills MESSAGES=2000000 KILLS=10` sets other
numbers, and SEED=n repeats the moments of a run as far as the machine allows.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from dledger_client import SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster

pytestmark = pytest.mark.long

MESSAGES = int(os.environ.get("DLEDGER_MESSAGES", "5000"))
KILLS = int(os.environ.get("DLEDGER_KILLS", "2"))
SEED = int(os.environ.get("DLEDGER_SEED") or random.SystemRandom().randrange(1_000_000))
BATCHES = KILLS + 2
"""Minimum number of micro-batches of each stream, so that enough of them can be killed."""
PER_BATCH = min(100_000, MESSAGES // BATCHES)
PATIENCE_SECONDS = 300.0
SOURCE, TARGET = "killed-source", "killed-target"
PROGRAM = Path(__file__).parents[1] / "killed_stream.py"


@pytest.fixture(scope="module")
def source(cluster: LocalCluster) -> str:
    with SyncAdmin(cluster.namesrv) as admin, SyncProducer(cluster.namesrv, group="killed") as producer:
        admin.create_topic(SOURCE, queues=4)
        for start in range(0, MESSAGES, 2000):
            end = min(start + 2000, MESSAGES)
            producer.send_batch(SOURCE, [b"%09d" % number for number in range(start, end)])
    return SOURCE


class Copy:
    """Both streams in processes of their own."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self._arguments = [cluster.namesrv, SOURCE, str(PER_BATCH), str(folder), TARGET]
        self._folder = folder
        self._said = folder / "said"

    def start(self) -> subprocess.Popen[bytes]:
        with self._said.open("ab") as said:
            command = [sys.executable, str(PROGRAM), *self._arguments]
            return subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def committed(self) -> int:
        """Return the number of finished micro-batches of both."""
        return len(list(self._folder.glob("checkpoint-*/commits/[0-9]*")))

    def wait_for(self, run: subprocess.Popen[bytes], commits: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.committed() < commits:
            assert run.poll() is None, self._said.read_text()[-4000:]
            assert time.monotonic() < deadline, self._said.read_text()[-4000:]
            time.sleep(0.005)

    def finish(self, run: subprocess.Popen[bytes]) -> None:
        assert run.wait(PATIENCE_SECONDS * max(1, MESSAGES // 200_000)) == 0, self._said.read_text()[-4000:]


def kill(process: int) -> bool:
    """Kill a process, and return whether it still existed."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill_driver(run: subprocess.Popen[bytes]) -> None:
    """Kill the driver's processes, those of Java and of Python."""
    for process in [*of_session(run.pid)]:
        kill(process)
    run.wait()


def kill_worker(run: subprocess.Popen[bytes], draw: random.Random) -> bool:
    """Kill a Python worker as soon as there is one. Return False if the streams end before."""
    while run.poll() is None:
        if kill_one_of_the_workers(run, draw):
            return True
        time.sleep(0.01)
    return False


def kill_one_of_the_workers(run: subprocess.Popen[bytes], draw: random.Random) -> bool:
    """Kill a Python worker that runs a task, and return whether there was one."""
    daemons = {process for process in of_session(run.pid) if b"pyspark.daemon" in command_of(process)}
    workers = [process for process in daemons if parent_of(process) in daemons]
    return bool(workers) and kill(draw.choice(sorted(workers)))


def of_session(session: int) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        fields = fields_of(int(folder.name))
        if fields and int(fields[3]) == session:
            yield int(folder.name)


def parent_of(process: int) -> int:
    fields = fields_of(process)
    return int(fields[1]) if fields else 0


def fields_of(process: int) -> list[bytes]:
    """Return state, parent, process group, session and the following fields, or nothing if the process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return []


def command_of(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def kill_again_and_again(copy: Copy) -> tuple[int, int]:
    """Kill the driver and a worker in turn, each after another micro-batch, and then let the streams end."""
    draw = random.Random(SEED)
    drivers = workers = 0
    run = copy.start()
    try:
        for number in range(KILLS):
            copy.wait_for(run, copy.committed() + 1)
            time.sleep(draw.random() * 0.2)  # a random moment within the next micro-batch
            if run.poll() is not None:
                break
            if number % 2:
                workers += kill_worker(run, draw)
            else:
                kill_driver(run)
                drivers += 1
                run = copy.start()
        copy.finish(run)
    finally:
        kill_driver(run)
    return drivers, workers


def check_each_once(rows: DataFrame) -> None:
    found = rows.selectExpr("count(*)", "count(DISTINCT value)", "min(value)", "max(value)").first()
    assert found is not None
    ends = b"%09d" % 0, b"%09d" % (MESSAGES - 1)
    assert (found[0], found[1], bytes(found[2]), bytes(found[3])) == (MESSAGES, MESSAGES, *ends)


def test_streams_that_are_killed_copy_each_row_once(
    spark: SparkSession, cluster: LocalCluster, source: str, tmp_path: Path
) -> None:
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(TARGET, queues=4)
    print(f"seed {SEED} (DLEDGER_SEED={SEED})", flush=True)
    began = time.monotonic()
    drivers, workers = kill_again_and_again(Copy(cluster, tmp_path))
    print(f"{MESSAGES} messages from {source}, {drivers} drivers and {workers} workers killed", end=" ")
    print(f"in {time.monotonic() - began:.0f} s", flush=True)
    check_each_once(spark.read.parquet(str(tmp_path / "rows")))
    reader = spark.read.format("dledger").option("namesrv", cluster.namesrv).option("subscribe", TARGET)
    check_each_once(reader.option("columns", "value").load())
    assert drivers + workers > KILLS // 2
