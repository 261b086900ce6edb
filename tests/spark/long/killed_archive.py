"""`dledger spark archive` is killed with all its processes at a random moment, and run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from dledger_client import SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark.jobs import archive, read_archive
from dledger_spark.jobs.archives import Archive

TOPIC = "killed-archive"
MESSAGES = 20_000
ROWS_PER_COMMIT = 1_000
PATIENCE_SECONDS = 180.0


@pytest.fixture(scope="module")
def bodies(cluster: LocalCluster) -> list[bytes]:
    """Return the bodies in the topic."""
    sent = [b"message %06d" % number for number in range(MESSAGES)]
    with SyncAdmin(cluster.namesrv) as admin, SyncProducer(cluster.namesrv, group="killed-archive") as producer:
        admin.create_topic(TOPIC, queues=2)
        for start in range(0, MESSAGES, 1000):
            producer.send_batch(TOPIC, sent[start : start + 1000])
    return sent


@pytest.mark.long
@pytest.mark.parametrize("commits", [1, 3])
def test_a_killed_archive_run_keeps_its_commits_and_the_next_run_completes_them(
    spark: SparkSession, cluster: LocalCluster, bodies: list[bytes], tmp_path: Path, commits: int
) -> None:
    path, said = tmp_path / "archive", tmp_path / "said"
    arguments = ["--topics", TOPIC, "--path", str(path), "--rows-per-commit", str(ROWS_PER_COMMIT)]
    command = [sys.executable, "-m", "dledger_admin", "spark", "archive", "--namesrv", cluster.namesrv, *arguments]
    with said.open("wb") as file:
        run = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (path / "manifests" / f"{commits:020d}.json").exists():
            assert run.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.02)
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    killed_at = Archive(spark, str(path)).manifests.read()
    assert commits * ROWS_PER_COMMIT <= killed_at.rows < MESSAGES
    assert read_archive(spark, str(path)).count() == killed_at.rows
    result = archive(spark, namesrv=cluster.namesrv, topics=TOPIC, path=str(path))
    assert (result.rows, result.total_rows) == (MESSAGES - killed_at.rows, MESSAGES)
    rows = read_archive(spark, str(path)).select("value").collect()
    assert Counter(bytes(row.value) for row in rows) == Counter(bodies)
