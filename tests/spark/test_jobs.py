"""Jobs over real clusters: archives are exact after any kills, and verification finds a planted difference."""

from __future__ import annotations

import asyncio
import re
import runpy
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from raw_sends import send_raw

from dledger_client import Admin, Message, MessageQueue, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.topics import SubscriptionGroupConfig
from dledger_spark.jobs import (
    ArchiveResult,
    JobError,
    archive,
    compact,
    lag,
    message_stats,
    read_archive,
    replay,
    stats,
    verify,
)
from dledger_spark.jobs.archives import Archive
from dledger_spark.jobs.manifest import Manifests
from dledger_spark.jobs.storage import HadoopStorage

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TOPIC = "jobs-source"
FIRST = 2000


class Source:
    """Topic for the jobs. Its messages are numbered from 0 to `sent` - 1."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.sent = 0

    def send(self, count: int) -> None:
        send(self.cluster, TOPIC, range(self.sent, self.sent + count))
        self.sent += count

    def everything(self) -> Counter[bytes]:
        return numbered(range(self.sent))


def body(number: int) -> bytes:
    return b"message %06d" % number


def message(number: int) -> Message:
    return Message(
        body(number),
        key="heavy" if number % 3 == 0 else f"k{number}",
        tags="even" if number % 2 == 0 else "odd",
        properties={"number": str(number)},
    )


def send(cluster: LocalCluster, topic: str, numbers: range) -> None:
    with SyncProducer(cluster.namesrv, group="jobs", idempotent=True) as producer:
        for start in range(numbers.start, numbers.stop, 100):
            part = range(start, min(start + 100, numbers.stop))
            producer.send_batch(topic, [message(number) for number in part])


def bodies(frame: DataFrame) -> Counter[bytes]:
    return Counter(bytes(row.value) for row in frame.select("value").collect())


def numbered(numbers: range) -> Counter[bytes]:
    return Counter(body(number) for number in numbers)


@pytest.fixture(scope="module")
def source(cluster: LocalCluster) -> Source:
    with SyncAdmin(cluster.namesrv) as admin:
        for name in (TOPIC, "jobs-target", "jobs-other", "jobs-copy", "jobs-lag", "jobs-pins"):
            admin.create_topic(name, queues=2)
    source = Source(cluster)
    source.send(FIRST)
    return source


@pytest.fixture(scope="module")
def path(spark: SparkSession, source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an archive of the first messages, from two commits."""
    path = tmp_path_factory.mktemp("jobs") / "an archive"
    result = archive(
        spark, namesrv=source.cluster.namesrv, topics=TOPIC, path=str(path), rows_per_commit=FIRST * 2 // 3
    )
    assert (result.commits, result.rows, result.total_rows, result.lost_rows) == (2, FIRST, FIRST, 0)
    assert bodies(read_archive(spark, str(path))) == source.everything()
    return path


def archive_again(spark: SparkSession, source: Source, path: Path) -> ArchiveResult:
    return archive(spark, namesrv=source.cluster.namesrv, topics=[TOPIC], path=str(path))


# Archives.


def test_further_archive_runs_add_only_new_messages(spark: SparkSession, source: Source, path: Path) -> None:
    archive_again(spark, source, path)
    before = source.everything()
    again = archive_again(spark, source, path)
    assert (again.rows, again.commits, again.total_rows) == (0, 0, source.sent)
    source.send(150)
    more = archive_again(spark, source, path)
    assert (more.rows, more.commits, more.version) == (150, 1, again.version + 1)
    rows = read_archive(spark, str(path))
    assert bodies(rows) == source.everything()
    row = rows.where("value = cast('message 000006' as binary)").first()
    assert (row.topic, row.tags, row["keys"], row.properties["number"]) == (TOPIC, "even", "heavy", "6")
    assert rows.where("day <> to_date(timestamp)").count() == 0
    assert bodies(read_archive(spark, str(path), version=again.version)) == before


def test_a_message_that_cannot_be_decoded_is_counted_and_holds_nothing_up(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("jobs-bad", queues=1, broker_groups=["broker-a"])
    send(cluster, "jobs-bad", range(1))
    send_raw(cluster.namesrv, "jobs-bad", b"no stream", sys_flag=1)
    send_raw(cluster.namesrv, "jobs-bad", b"late", born_ms=253_402_300_800_000)
    what = {"namesrv": cluster.namesrv, "topics": "jobs-bad"}
    kept = archive(spark, **what, path=str(tmp_path / "kept"))
    assert (kept.rows, kept.bad_bodies, kept.unknown_births) == (3, 1, 1)
    rows = read_archive(spark, str(tmp_path / "kept")).orderBy("offset").select("value", "_corrupt_record").collect()
    assert [tuple(row) for row in rows] == [(body(0), None), (None, b"no stream"), (b"late", None)]
    fewer = archive(spark, **what, path=str(tmp_path / "fewer"), bad_records="DROPMALFORMED")
    assert (fewer.rows, fewer.bad_bodies, fewer.lost_rows) == (2, 1, 0)
    with pytest.raises(PySparkException, match="offset 1 of jobs-bad/broker-a/0"):
        archive(spark, **what, path=str(tmp_path / "none"), bad_records="FAILFAST")
    size = len(body(0)) + len(b"late")
    for bad_records, messages in (("PERMISSIVE", 3), ("DROPMALFORMED", 2)):
        found = stats(spark, **what, bad_records=bad_records)
        assert (found.messages, found.bad_bodies, found.unknown_births) == (messages, 1, 1)
        assert found.size_bytes == size + (len(b"no stream") if messages == 3 else 0)
    send_raw(cluster.namesrv, "jobs-bad", b"tagged", properties="TAGS\x01a || b\x02")
    again = replay(spark, **what, to_topic="jobs-good", job_id="bad")
    assert (again.rows, again.bad_bodies, again.refused_tags) == (2, 1, 1)


def test_a_run_that_dies_before_its_manifest_is_not_seen(
    spark: SparkSession, source: Source, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_again(spark, source, path)
    archived = source.everything()
    before = Archive(spark, str(path)).manifests.read()
    source.send(50)

    def dies(*_: object) -> None:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(Manifests, "commit", dies)
        with pytest.raises(InterruptedError):
            archive_again(spark, source, path)
    assert Archive(spark, str(path)).manifests.read() == before
    assert bodies(read_archive(spark, str(path))) == archived
    assert archive_again(spark, source, path).rows == 50
    assert bodies(read_archive(spark, str(path))) == source.everything()


def test_compaction_leaves_few_files_and_the_same_rows(spark: SparkSession, source: Source, path: Path) -> None:
    source.send(10)
    archive_again(spark, source, path)
    before = Archive(spark, str(path)).manifests.read()
    rows = sorted(map(str, read_archive(spark, str(path)).collect()))
    result = compact(spark, path=str(path), keep_seconds=-1)
    days = {file.day for file in before.files}
    assert (result.files_before, result.rows) == (len(before.files), before.rows)
    assert result.files_after <= len(days) + 1 < result.files_before
    assert sorted(map(str, read_archive(spark, str(path)).collect())) == rows
    assert result.removed >= result.files_before
    assert len(list(path.glob("data/*/*/*/*.parquet"))) == result.files_after
    assert compact(spark, path=str(path)).version == result.version


def test_an_archive_lies_on_any_file_system_that_spark_knows(spark: SparkSession, tmp_path: Path) -> None:
    storage = HadoopStorage(spark, f"file:{tmp_path}/some where")
    storage.create("manifests/1.json", b"one")
    with pytest.raises(FileExistsError):
        storage.create("manifests/1.json", b"two")
    assert storage.read("manifests/1.json") == b"one"
    storage.create("data/run=1/topic=%25RETRY%25g/_SUCCESS", b"")
    storage.create("data/run=1/topic=%25RETRY%25g/part", b"abc")
    assert storage.files("data") == {"data/run=1/topic=%25RETRY%25g/part": 3}
    assert (storage.names("data"), storage.names("manifests")) == (["run=1"], ["1.json"])
    storage.remove("data")
    assert (storage.names("data"), storage.files("data")) == ([], {})


# Statistics, lag, replay.


def test_stats_count_messages_keys_and_producers(spark: SparkSession, source: Source, path: Path) -> None:
    archive_again(spark, source, path)
    namesrv = source.cluster.namesrv
    found = stats(spark, namesrv=namesrv, topics=TOPIC, from_ms=1, to_ms=int(time.time() * 1000) + 60_000, top=1)
    size_bytes = len(body(0))
    assert found.messages == sum(one.messages for one in found.minutes) == source.sent
    assert found.size_bytes == sum(one.size_bytes for one in found.minutes) == found.messages * size_bytes
    assert {(one.topic, one.size_p50, one.size_p99, one.size_max) for one in found.minutes} == {
        (TOPIC, size_bytes, size_bytes, size_bytes)
    }
    assert all(one.delay_p50_ms <= one.delay_p99_ms <= one.delay_max_ms for one in found.minutes)
    (heavy,) = found.keys
    assert (heavy.key, heavy.messages) == ("heavy", len(range(0, source.sent, 3)))
    (producer,) = found.producers
    assert (producer.born_host, producer.messages) == ("127.0.0.1", source.sent)
    assert message_stats(read_archive(spark, str(path)), top=1) == found
    nothing = stats(spark, namesrv=namesrv, topics=TOPIC, to_ms=1)
    assert (nothing.messages, nothing.minutes) == (0, [])


def test_a_key_counts_once_per_message_and_blanks_do_not_count(spark: SparkSession) -> None:
    messages = spark.sql(
        "SELECT X'01' AS value, 'T' AS topic, now() AS timestamp, keys, now() AS born_timestamp, 'h' AS born_host "
        "FROM VALUES (' a  b a '), ('b'), (''), (' '), (null) AS rows(keys)"
    )
    assert [(one.key, one.messages) for one in message_stats(messages).keys] == [("b", 2), ("a", 1)]


async def create_group(cluster: LocalCluster, name: str) -> None:
    async with Admin(cluster.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig(name))


def test_lag_counts_the_unprocessed_messages_of_groups(spark: SparkSession, source: Source) -> None:
    cluster = source.cluster
    asyncio.run(create_group(cluster, "jobs-readers"))
    send(cluster, "jobs-lag", range(100))
    with SyncAdmin(cluster.namesrv) as admin:
        admin.set_offset("jobs-readers", MessageQueue("jobs-lag", "broker-a", 0), 10)
    found = lag(namesrv=cluster.namesrv, groups=["jobs-readers"], topics="jobs-lag")
    assert [(group, topic, behind) for _, group, topic, behind in found.totals()] == [("jobs-readers", "jobs-lag", 90)]
    rows = found.frame(spark).collect()
    assert {(row.queue_id, row.broker_group, row.first, row.committed) for row in rows} == {
        (queue_id, group, 0, 10 if (group, queue_id) == ("broker-a", 0) else None)
        for group in cluster.groups
        for queue_id in range(2)
    }
    assert sum(row.end for row in rows) == 100
    everything = lag(namesrv=cluster.namesrv, groups=["jobs-readers"])
    assert {one.topic for one in everything.samples} == {"jobs-lag"}


def read(spark: SparkSession, cluster: LocalCluster, topic: str) -> DataFrame:
    options = {"namesrv": cluster.namesrv, "subscribe": topic, "includeHeaders": "true"}
    return spark.read.format("dledger").options(**options).load()


def test_a_repeated_replay_stores_nothing_twice(spark: SparkSession, source: Source, path: Path) -> None:
    archive_again(spark, source, path)
    cluster = source.cluster
    wanted = {"archive": str(path), "where": "tags = 'even'", "to_topic": "jobs-target", "job_id": "once"}
    for _ in range(2):
        result = replay(spark, namesrv=cluster.namesrv, rate=100_000, **wanted)
        assert result.rows == (source.sent) // 2
    rows = read(spark, cluster, "jobs-target")
    assert bodies(rows) == numbered(range(0, source.sent, 2))
    row = rows.where("value = cast('message 000006' as binary)").first()
    assert (row.tags, row["keys"], [(one.key, bytes(one.value)) for one in row.headers]) == (
        "even",
        "heavy",
        [("number", b"6")],
    )


def test_topics_are_replayed_to_the_queues_they_came_from(spark: SparkSession, source: Source) -> None:
    cluster = source.cluster
    send(cluster, "jobs-other", range(100))
    result = replay(
        spark, namesrv=cluster.namesrv, topics="jobs-other", to_topic="jobs-copy", job_id="copy", same_queues=True
    )
    assert result.rows >= 100
    queues = [
        {(row.partition, bytes(row.value)) for row in read(spark, cluster, topic).collect()}
        for topic in ("jobs-other", "jobs-copy")
    ]
    assert queues[0] == queues[1]
    with pytest.raises(JobError, match="into itself"):
        replay(spark, namesrv=cluster.namesrv, topics="jobs-copy", to_topic="jobs-copy", job_id="loop")
    with pytest.raises(JobError, match=r"topic jobs-none does not exist.* create it first"):
        replay(
            spark, namesrv=cluster.namesrv, topics="jobs-other", to_topic="jobs-none", job_id="none", same_queues=True
        )


# Verification.


def test_followers_that_are_equal_are_valid_and_a_planted_difference_is_found(
    spark: SparkSession, source: Source
) -> None:
    cluster = source.cluster
    cluster.wait_ready()
    found = verify(spark, namesrv=cluster.namesrv)
    assert (found.verdict, found.findings) == ("valid", [])
    assert len(found.replicas) == 4
    assert sum(one.messages for one in found.topics if one.topic == TOPIC) == source.sent
    leader = cluster.leader("broker-a")
    victim = next(node for node in cluster.members("broker-a") if node != leader)
    segment = min((cluster.data_dir / victim / "commitlog").iterdir())
    place = segment.read_bytes().index(body(1234)) + 3
    with segment.open("r+b") as file:
        file.seek(place)
        file.write(b"X")
    try:
        found = verify(spark, namesrv=cluster.namesrv, groups=["broker-a"])
        assert found.verdict == "invalid"
        first = found.findings[0]
        assert (first.node, first.group) == (victim, "broker-a")
        assert first.position <= int(segment.name) + place
        assert "body" in first.what
    finally:
        cluster.restart(victim)
        cluster.wait_ready()
    assert verify(spark, namesrv=cluster.namesrv, groups=["broker-a"]).verdict == "valid"


def test_a_follower_that_cannot_be_read_makes_the_verdict_unknown(spark: SparkSession, cluster: LocalCluster) -> None:
    leader = cluster.leader("broker-b")
    victim = next(node for node in cluster.members("broker-b") if node != leader)
    cluster.kill(victim)
    try:
        found = verify(spark, namesrv=cluster.namesrv, groups=["broker-b"], read_timeout="1s")
    finally:
        cluster.restart(victim)
    assert found.verdict == "unknown"
    assert len(found.replicas) == 1
    assert "only 1 of at least 2 nodes could be read" in [one.what for one in found.findings]


# Pins.


def test_jobs_release_their_pins_when_they_end_or_fail(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    namesrv = source.cluster.namesrv
    before, meanwhile = pins(namesrv), set[str]()

    def look(_: str) -> None:
        meanwhile.update(pins(namesrv))

    stats(spark, namesrv=namesrv, topics=TOPIC, on_phase=look)
    assert meanwhile > before
    assert pins(namesrv) == before
    archived = archive(
        spark, namesrv=namesrv, topics=TOPIC, path=str(tmp_path), mode="segments", rows_per_commit=source.sent // 2 + 1
    )
    assert archived.commits == 2
    assert pins(namesrv) == before
    replay(spark, namesrv=namesrv, topics=TOPIC, to_topic="jobs-pins", job_id="pins")
    assert pins(namesrv) == before
    with pytest.raises(PySparkException, match="refused"):
        replay(
            spark,
            namesrv=namesrv,
            topics=TOPIC,
            to_topic="jobs-pins",
            job_id="fails",
            where="raise_error('refused') IS NULL",
        )
    assert pins(namesrv) == before


def pins(namesrv: str) -> set[str]:
    async def ask() -> set[str]:
        async with Admin(namesrv) as admin:
            return {pin.name for rows in (await admin.pins()).values() for pin in rows}

    return asyncio.run(ask())


# Output for people to repeat.


def test_the_example_runs(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(spark, "stop", lambda: None)  # all tests share this session
    monkeypatch.setattr(sys, "argv", ["spark_archive.py", cluster.namesrv, str(tmp_path / "archive")])
    runpy.run_path(str(ROOT / "examples" / "spark_archive.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [f"added 500, there are {number}" for number in (500, 1000, 1500)]
    assert lines[3].startswith("the same 1500 in version ")
    assert lines[4] == "often has 750 messages"


def test_the_snippet_of_the_guide_runs(spark: SparkSession, source: Source, tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "guides" / "spark-jobs.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    for printed, here in (
        ("127.0.0.1:9876", source.cluster.namesrv),
        ('"orders"', f'"{TOPIC}"'),
        ('"archive"', f'"{tmp_path}/archive"'),
    ):
        assert printed in snippet
        snippet = snippet.replace(printed, here)
    names: dict[str, object] = {}
    exec(snippet, names)
    assert names["result"].total_rows == source.sent
