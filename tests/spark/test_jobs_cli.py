"""`dledger spark`: results as JSON and text, exit codes, and one clear line instead of a traceback."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from dledger_admin.cli import main
from dledger_admin.commands.spark_progress import job_progress, tasks_done
from dledger_base.extras import install_command
from dledger_client import SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.topics import SubscriptionGroupConfig

pytestmark = pytest.mark.long

TOPIC = "cli-source"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["spark", *arguments])


@pytest.fixture(scope="module")
def namesrv(spark: SparkSession, cluster: LocalCluster) -> str:
    """Return the name server of a cluster with a topic. The other tests' session runs the jobs."""
    assert SparkSession.getActiveSession() is spark
    with SyncAdmin(cluster.namesrv) as admin, SyncProducer(cluster.namesrv, group="cli", idempotent=True) as producer:
        admin.create_topic(TOPIC, queues=1)
        admin.create_topic("cli-target", queues=1)
        admin.create_topic("cli-empty", queues=1)
        admin.create_group(SubscriptionGroupConfig("nobody"))
        producer.send_batch(TOPIC, [b"%03d" % number for number in range(100)])
    return cluster.namesrv


def test_an_archive_is_written_and_replayed(namesrv: str, tmp_path: Path) -> None:
    arguments = ["archive", "--namesrv", namesrv, "--topics", TOPIC, "--path", str(tmp_path / "a"), "--compact"]
    done = run(*arguments, "-o", "json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["archive"]["rows"], result["archive"]["total_rows"], result["compaction"]["rows"]) == (100,) * 3
    assert "archiving 100 of 100 messages" in done.stderr
    again = run(*arguments)
    assert "nothing to add" in again.stdout
    assert "100 messages in 1 files" in again.stdout
    sent = run(
        *("replay", "--namesrv", namesrv, "--archive", str(tmp_path / "a"), "--where", "cast(value as string) < '010'"),
        *("--to-topic", "cli-target", "--job-id", "once", "-o", "json"),
    )
    assert sent.exit_code == 0, sent.output
    assert json.loads(sent.stdout)["rows"] == 10


def test_a_cluster_is_verified_measured_and_watched(namesrv: str) -> None:
    verified = run("verify", "--namesrv", namesrv, "--broker-group", "broker-a")
    assert verified.exit_code == 0, verified.output
    assert verified.stdout.rstrip().endswith("\n\nvalid")
    measured = run("stats", "--namesrv", namesrv, "--topics", TOPIC, "--from", "2020-01-01T00:00")
    assert measured.exit_code == 0, measured.output
    assert measured.stdout.rstrip().endswith("100 messages, 0.0 MB")
    watched = run("lag", "--namesrv", namesrv, "--group", "nobody", "--topics", TOPIC)
    assert watched.exit_code == 0, watched.output
    assert watched.stdout.splitlines()[-1].split()[-3:] == ["nobody", TOPIC, "100"]
    assert watched.stderr == "sample 1 of 1\n"


def test_an_archive_run_without_messages_compacts_nothing(namesrv: str, tmp_path: Path) -> None:
    path = str(tmp_path / "empty")
    done = run("archive", "--namesrv", namesrv, "--topics", "cli-empty", "--path", path, "--compact", "-o", "json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert (result["archive"]["total_rows"], result["compaction"]) == (0, None)


def test_a_program_of_its_own_prints_its_result_alone_and_nothing_of_sparks_logging(
    namesrv: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dledger_admin", "spark", "lag", "--namesrv", namesrv, "--topics", TOPIC),
            *("--group", "nobody", "--path", str(tmp_path / "lags"), "--master", "local[1]", "-o", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sum(sample["lag"] for sample in json.loads(done.stdout)["samples"]) == 100
    from_the_jvm_itself = "WARNING: Using incubator modules: jdk.incubator.vector"
    assert [line for line in done.stderr.splitlines() if line != from_the_jvm_itself] == [
        "sample 1 of 1",
        "writing the samples",
    ]
    assert list((tmp_path / "lags").glob("*.parquet"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["archive", "--topics", "no-such-topic", "--path", "unused"], "topic 'no-such-topic' does not exist"),
        (["verify", "--broker-group", "broker-x"], "there is no broker group 'broker-x', only broker-a, broker-b"),
        (["stats", "--topics", "no-such-topic"], "topic 'no-such-topic' does not exist"),
        (["lag", "--group", "typo", "--topics", TOPIC], "there is no consumer group 'typo'"),
        (["replay", "--to-topic", "x", "--job-id", "j"], "nothing to replay"),
        (["replay", "--topics", TOPIC, "--to-topic", TOPIC, "--job-id", "j"], "would be replayed into itself"),
        (["replay", "--archive", "nowhere", "--to-topic", "x", "--job-id", "j"], "there is no archive at"),
    ],
)
def test_a_job_that_cannot_run_fails_with_one_line(namesrv: str, arguments: list[str], says: str) -> None:
    done = run(arguments[0], "--namesrv", namesrv, *arguments[1:])
    assert done.exit_code == 1
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert says in line
    assert "Traceback" not in done.stderr


def test_without_the_extra_the_pip_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    done = run("verify")
    assert done.exit_code == 1
    assert install_command("spark") in done.stderr


class Tracker:
    """Spark's status tracker with two running stages, one of which has just ended."""

    def getActiveStageIds(self) -> list[int]:
        return [3, 4]

    def getStageInfo(self, number: int) -> SimpleNamespace | None:
        return SimpleNamespace(numTasks=8, numCompletedTasks=5) if number == 3 else None


def test_a_terminal_shows_the_phase_and_its_tasks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=Tracker))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("dledger_admin.commands.spark_progress.POLL_SECONDS", 0.001)
    told = threading.Event()

    def tasks(spark: object) -> tuple[int, int]:
        told.set()
        return tasks_done(spark)

    monkeypatch.setattr("dledger_admin.commands.spark_progress.tasks_done", tasks)
    with job_progress(running, "archive") as on_phase:
        on_phase("archiving 100 messages")
        told.clear()
        assert told.wait(10)
    shown = capsys.readouterr().err
    assert "archive: archiving 100 messages" in shown
    assert "5/8" in shown
