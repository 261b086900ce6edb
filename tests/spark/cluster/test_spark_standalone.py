"""A standalone Spark cluster reads exactly the acknowledged messages, also if workers or nodes die.

Its executors have nothing installed. `make test-spark-cluster` runs this. It takes minutes, so `make test` leaves it
out.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pyspark
import pytest

from dledger.testing.ports import free_ports
from dledger_client import Message, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark.package import write_package

SPARK = Path(pyspark.__file__).parent
HERE = Path(__file__).parent
MESSAGES = 60_000


def bare_interpreter(folder: Path) -> Path:
    """Create an interpreter with this one's packages, except those that are links to a checkout."""
    program = folder / "python"
    packages = SPARK.parent
    program.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec "{sys.executable}" -S "$@"\n')
    program.chmod(0o755)
    return program


class SparkCluster:
    """A master and two workers of one core each, on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{free_ports(1)[0]}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYSPARK_PYTHON": str(bare_interpreter(folder)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "384m",
        } | ({"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {})

    def start(self) -> None:
        self._run(
            "master", "master.Master", "--port", self.master.rpartition(":")[2], "--webui-port", str(free_ports(1)[0])
        )
        self._await("master", "I have been elected leader")
        for name in ("worker-1", "worker-2"):
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        work = str(self.folder / name)
        ports = ("--webui-port", str(free_ports(1)[0]), "--cores", "1", "--memory", "768m", "--work-dir", work)
        self._run(name, "worker.Worker", self.master, *ports)
        self._await(name, "Successfully registered with master")

    def kill(self, name: str) -> None:
        """Kill a worker and the executors that it started, with SIGKILL."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self._processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def submit(self, archive: Path, *arguments: str) -> subprocess.Popen[str]:
        options = {
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.log.level": "ERROR",
        }
        conf = [part for name, value in options.items() for part in ("--conf", f"{name}={value}")]
        program = str(HERE / "standalone_application.py")
        command = [str(SPARK / "bin" / "spark-submit"), "--master", self.master, *conf, "--py-files", str(archive)]
        return subprocess.Popen(
            [*command, program, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "driver.log").open("w"),
            text=True,
        )

    def _run(self, name: str, what: str, *arguments: str) -> None:
        command = [str(SPARK / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1"]
        if what == "worker.Worker":
            command = [*command[:2], arguments[0], *command[2:], *arguments[1:]]
        else:
            command += arguments
        with (self.folder / f"{name}.log").open("w") as log:
            self._processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )

    def _await(self, name: str, text: str) -> None:
        deadline = time.monotonic() + 120
        log = self.folder / f"{name}.log"
        while text not in log.read_text(errors="replace"):
            assert self._processes[name].poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, f"{name} did not say {text!r}: {log.read_text(errors='replace')}"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        yield started


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    started = SparkCluster(tmp_path_factory.mktemp("spark"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "source.zip"
    write_package(path)
    return path


@pytest.fixture(scope="module")
def acknowledged(cluster: LocalCluster) -> dict[str, object]:
    """Return count and hash of the values that a producer knows to be stored."""
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("big", queues=4)
    values = [b"%08d" % number + bytes(1000) for number in range(MESSAGES)]
    with SyncProducer(cluster.namesrv, group="standalone", timeout=60) as producer:
        for start in range(0, MESSAGES, 1000):
            producer.send_batch("big", [Message(value) for value in values[start : start + 1000]])
    cluster.wait_ready()
    digests = b"".join(sorted(sha256(value).digest() for value in values))
    return {"count": MESSAGES, "digest": sha256(digests).hexdigest()}


def result_of(process: subprocess.Popen[str], folder: Path) -> dict[str, object]:
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0, (folder / "driver.log").read_text()[-4000:]
    found = re.search(r"^RESULT (.*)$", output, re.MULTILINE)
    assert found is not None, output
    document: dict[str, object] = json.loads(found[1])
    return document


@pytest.mark.parametrize("mode", ["segments", "queues"])
def test_executors_read_all_acknowledged_messages_while_nodes_and_a_worker_die(
    cluster: LocalCluster,
    spark_cluster: SparkCluster,
    archive: Path,
    acknowledged: dict[str, object],
    mode: str,
    tmp_path: Path,
) -> None:
    progress = tmp_path / "progress"
    process = spark_cluster.submit(archive, cluster.namesrv, "big", mode, str(progress))
    killed: list[str] = []
    begun = threading.Event()

    def disturb() -> None:
        deadline = time.monotonic() + 240
        while not progress.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        begun.set()
        follower = next(node for node in cluster.members("broker-a") if node != cluster.leader())
        cluster.kill(follower)
        killed.append(follower)
        spark_cluster.kill("worker-2")
        cluster.restart(follower)
        cluster.wait_ready()
        killed.append(cluster.kill_leader())

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        assert result_of(process, spark_cluster.folder) == acknowledged
    finally:
        thread.join()
        if len(killed) == 2:
            cluster.restart(killed[1])
        cluster.wait_ready()
        spark_cluster.start_worker("worker-2")
    assert begun.is_set()
    assert len(killed) == 2
