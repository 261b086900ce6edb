"""Streams read nothing twice and skip nothing, over restarts, new queues and the death of any node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from raw_sends import send_raw
from streams import run_to_its_end, survives_the_start

from dledger_client import MessageQueue, SubscriptionGroupConfig, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark.left_out import left_out_rows

pytestmark = pytest.mark.long


class Stream:
    """Stream of topics into a folder of JSON files, which is exactly once by itself."""

    def __init__(self, spark: SparkSession, cluster: LocalCluster, folder: Path, **options: object) -> None:
        self._spark = spark
        self._options = {"namesrv": cluster.namesrv, "columns": "value,broker_group,queue_id,offset"} | options
        self._folder = folder

    def start(self, **trigger: object) -> StreamingQuery:
        reader = self._spark.readStream.format("dledger")
        for name, value in self._options.items():
            reader = reader.option(name, str(value))
        writer = reader.load().selectExpr("CAST(value AS STRING)", "broker_group", "queue_id", "offset").writeStream
        writer = writer.format("json").option("checkpointLocation", str(self._folder / "checkpoint"))
        return writer.trigger(**trigger).start(str(self._folder / "out"))

    def run(self) -> StreamingQuery:
        return run_to_its_end(lambda: self.start(availableNow=True))

    def values(self) -> list[str]:
        files = sorted((self._folder / "out").glob("*.json"))
        return sorted(json.loads(line)["value"] for file in files for line in file.read_text().splitlines())


@pytest.fixture
def send(cluster: LocalCluster) -> Callable[..., list[str]]:
    def send_values(topic: str, values: list[str], queue: MessageQueue | None = None) -> list[str]:
        with SyncProducer(cluster.namesrv, group="streams", idempotent=True) as producer:
            producer.send_batch(topic, [value.encode() for value in values], queue=queue)
        return values

    return send_values


def create(cluster: LocalCluster, topic: str, queues: int) -> None:
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=queues)


def numbered(start: int, end: int) -> list[str]:
    return [f"{number:06}" for number in range(start, end)]


def test_a_stream_goes_on_from_its_checkpoint_behind_a_message_that_cannot_be_decoded(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, send: Callable[..., list[str]]
) -> None:
    create(cluster, "s-bad", 1)
    queue = MessageQueue("s-bad", "broker-a", 0)
    stream = Stream(spark, cluster, tmp_path, subscribe="s-bad", startingOffsets="earliest", maxOffsetsPerTrigger=1)
    send("s-bad", ["before"], queue)
    send_raw(cluster.namesrv, "s-bad", b"no stream", sys_flag=1)
    send("s-bad", ["after"], queue)
    with pytest.raises(StreamingQueryException, match=r"offset 1 of s-bad/broker-a/0 .*badRecords=PERMISSIVE"):
        stream.run()
    query = Stream(spark, cluster, tmp_path, subscribe="s-bad", badRecords="DROPMALFORMED").run()
    assert sum(map(left_out_rows, query.recentProgress)) == 1
    assert stream.values() == ["after", "before"]
    anew = Stream(
        spark, cluster, tmp_path / "anew", subscribe="s-bad", badRecords="DROPMALFORMED", startingOffsets="earliest"
    )
    assert sum(map(left_out_rows, anew.run().recentProgress)) == 1


def test_a_restart_repeats_nothing_skips_nothing_and_takes_new_queues(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, send: Callable[..., list[str]]
) -> None:
    create(cluster, "s1", 2)
    stream = Stream(spark, cluster, tmp_path, subscribe="s1", startingOffsets="earliest", maxOffsetsPerTrigger=150)
    sent = send("s1", numbered(0, 200)) + send("s1", numbered(200, 400))
    first = stream.run()
    assert stream.values() == sorted(sent)
    batches = [progress["numInputRows"] for progress in first.recentProgress if progress["numInputRows"]]
    assert max(batches) <= 150
    assert sum(batches) == 400
    assert sum(progress["numInputRows"] for progress in stream.run().recentProgress) == 0
    create(cluster, "s1", 3)
    sent += send("s1", numbered(400, 450), MessageQueue("s1", "broker-b", 2)) + send("s1", numbered(450, 500))
    stream.run()
    assert stream.values() == sorted(sent)


def test_progress_is_published_as_a_consumer_group(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, send: Callable[..., list[str]]
) -> None:
    create(cluster, "s3", 1)
    send("s3", numbered(0, 5), MessageQueue("s3", "broker-b", 0))
    stream = Stream(spark, cluster, tmp_path, subscribe="s3", startingOffsets="earliest", groupId="spark-s3")
    stream.run()
    own = SubscriptionGroupConfig("spark-s3", retry_max_times=3)
    with SyncAdmin(cluster.namesrv) as admin:
        status = {one.queue.broker_group: one for one in admin.offsets("spark-s3", "s3")}
        admin.create_group(own)
    send("s3", numbered(5, 6), MessageQueue("s3", "broker-a", 0))
    stream.run()
    with SyncAdmin(cluster.namesrv) as admin:
        assert [one.committed for one in admin.offsets("spark-s3", "s3")] == [1, 5]
        assert replace(admin.groups()["spark-s3"], attributes={}) == own, "it is marked, and its settings stay"
    assert {group: (one.committed, one.lag) for group, one in status.items()} == {
        "broker-a": (0, 0),
        "broker-b": (5, 0),
    }


def test_a_deleted_topic_fails_the_stream_unless_told_otherwise(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, send: Callable[..., list[str]]
) -> None:
    create(cluster, "s4", 1)
    send("s4", numbered(0, 20), MessageQueue("s4", "broker-a", 0))
    stream = Stream(spark, cluster, tmp_path, subscribe="s4", startingOffsets="earliest")
    stream.run()
    with SyncAdmin(cluster.namesrv) as admin:
        admin.delete_topic("s4")
    create(cluster, "s4", 1)
    later = send("s4", numbered(100, 125), MessageQueue("s4", "broker-a", 0))  # more than the earlier one had
    with pytest.raises(StreamingQueryException, match="made again, offset 20 of the earlier one was next"):
        stream.run()
    forgiving = Stream(spark, cluster, tmp_path, subscribe="s4", startingOffsets="earliest", failOnDataLoss="false")
    forgiving.run()
    assert forgiving.values() == sorted(numbered(0, 20) + later)


def test_a_run_of_an_available_now_stream_notices_a_deleted_topic(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, send: Callable[..., list[str]]
) -> None:
    create(cluster, "gone-1", 1)
    create(cluster, "gone-2", 1)
    send("gone-1", numbered(0, 5), MessageQueue("gone-1", "broker-a", 0))
    options = {"subscribePattern": "gone-.*", "startingOffsets": "earliest"}
    Stream(spark, cluster, tmp_path, **options).run()
    with SyncAdmin(cluster.namesrv) as admin:
        admin.delete_topic("gone-2")
    create(cluster, "gone-3", 1)
    sent = send("gone-3", numbered(10, 15), MessageQueue("gone-3", "broker-b", 0))
    with pytest.raises(StreamingQueryException, match="gone-2/broker-a/0 does not exist any more"):
        Stream(spark, cluster, tmp_path, **options).run()
    forgiving = Stream(spark, cluster, tmp_path, failOnDataLoss="false", **options)
    forgiving.run()
    assert forgiving.values() == sorted(numbered(0, 5) + sent)


def test_a_stream_that_chooses_gives_the_rows_of_queues_and_keeps_its_choice(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Records of 2 KB, of which each broker group has more than of all other topics."""
    create(cluster, "most", 2)
    with SyncProducer(cluster.namesrv, group="most") as producer:
        for start in range(0, 20_000, 500):
            producer.send_batch("most", [b"%09d" % number + bytes(1500) for number in range(start, start + 500)])
    options = {"subscribe": "most", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 7_000}
    by_queues = Stream(spark, cluster, tmp_path / "queues", **options)
    chosen = Stream(spark, cluster, tmp_path / "auto", mode="auto", **options)
    for _ in range(2):
        by_queues.run()
        chosen.run()
        assert chosen.values() == by_queues.values()
        with SyncProducer(cluster.namesrv, group="most") as producer:
            producer.send_batch("most", [b"later"])
    modes = {
        json.loads(path.read_text().splitlines()[-1]).get("mode")
        for path in (tmp_path / "auto" / "checkpoint" / "offsets").glob("[0-9]*")
    }
    assert (modes, len(chosen.values())) == ({"segments"}, 20_001)


def test_a_wrong_option_of_a_stream_reaches_the_user(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="option 'mode' is 'segments': streams read queue by queue") as raised:
        Stream(spark, cluster, tmp_path, subscribe="any", mode="segments").run()
    assert "UnboundLocalError" not in str(raised.value)


def test_nodes_that_die_change_nothing_in_the_result(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, send: Callable[..., list[str]]
) -> None:
    create(cluster, "s5", 2)
    stream = Stream(spark, cluster, tmp_path, subscribe="s5", startingOffsets="earliest", maxOffsetsPerTrigger=400)
    sent = send("s5", numbered(0, 1000)) + send("s5", numbered(1000, 2000))
    query = survives_the_start(lambda: stream.start(processingTime="0 seconds"))
    killed: list[str] = []
    try:
        killed.append(cluster.kill_leader("broker-a"))
        sent += send("s5", numbered(2000, 3000))
        follower = next(node for node in cluster.members("broker-b") if node != cluster.leader("broker-b"))
        cluster.kill(follower)
        killed.append(follower)
        sent += send("s5", numbered(3000, 4000))
        query.processAllAvailable()
    finally:
        query.stop()
        for node_id in killed:
            cluster.restart(node_id)
    cluster.wait_ready()
    stream.run()
    assert stream.values() == sorted(sent)
