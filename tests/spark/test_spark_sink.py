"""Writes turn rows into messages, and a task that runs again stores none of them twice."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from streams import run_to_its_end

from dledger_client import SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark.options import write_options
from dledger_spark.sending import RowSender

ROWS = 400
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks cannot import this module


def read(spark: SparkSession, cluster: LocalCluster, topic: str) -> DataFrame:
    source = spark.read.format("dledger").option("namesrv", cluster.namesrv).option("subscribe", topic)
    return source.option("includeHeaders", "true").load()


def stored(spark: SparkSession, cluster: LocalCluster, topic: str) -> Counter[bytes]:
    return Counter(bytes(row.value) for row in read(spark, cluster, topic).select("value").collect())


def write(frame: DataFrame, cluster: LocalCluster, **options: str) -> None:
    writer = frame.write.format("dledger").mode("append").option("namesrv", cluster.namesrv)
    writer.options(**options).save()


@pytest.fixture
def topic(cluster: LocalCluster, request: pytest.FixtureRequest) -> str:
    name = "sink-" + request.node.name.removeprefix("test_")[:60]
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(name, queues=2)
    return name


@pytest.mark.long
def test_columns_become_parts_of_the_message(spark: SparkSession, cluster: LocalCluster, topic: str) -> None:
    rows = spark.sql(
        "SELECT 'k' AS key, 'v' AS value, 'red' AS tags, 65537 AS partition, "
        "array(named_struct('key', 'a', 'value', CAST('1' AS BINARY))) AS headers "
        "UNION ALL SELECT NULL, '', NULL, 0, NULL"
    )
    write(rows, cluster, topic=topic)
    found = {row.partition: row for row in read(spark, cluster, topic).collect()}
    assert set(found) == {0, 65_537}
    full, bare = found[65_537], found[0]
    assert (bytes(full.key), bytes(full.value), full.tags) == (b"k", b"v", "red")
    assert [(header.key, bytes(header.value)) for header in full.headers] == [("a", b"1")]
    assert (bare.key, bytes(bare.value), bare.tags, bare.headers) == (None, b"", None, [])


def wait_until_stored(namesrv: str, topic: str) -> None:
    """Wait, in a task, until a topic has a first message."""
    with SyncAdmin(namesrv) as admin:
        for _ in range(3000):
            if any(status.end for status in admin.offsets("nobody", topic)):
                return
            time.sleep(0.02)
    raise AssertionError(f"nothing came to {topic}")


def row_text(number: int) -> str:
    """Return a row's value: equal for two neighbours, and too large for Spark's buffers to hold rows back."""
    return f"row {number // 2 * 2} " + "." * 4000


def numbered_rows(spark: SparkSession, *, reverse: bool = False, dies: Callable[[], None] | None = None) -> DataFrame:
    """Return the same rows in two partitions, some of them equal, in either order. Both tasks may die on their way."""

    def values(numbers: Iterable[int]) -> Iterator[tuple[str]]:
        for place, number in enumerate(sorted(numbers, reverse=reverse)):
            if dies is not None and place == 150:
                dies()
                raise RuntimeError("the task dies")
            yield (row_text(number),)

    return spark.createDataFrame(spark.sparkContext.parallelize(range(ROWS), 2).mapPartitions(values), "value STRING")


def test_a_topic_that_a_job_makes_is_on_all_broker_groups_before_its_first_row(cluster: LocalCluster) -> None:
    """Otherwise the rows of a repeated task would not go to the broker groups that remember them."""
    options = write_options({"namesrv": cluster.namesrv, "topic": "sink-made", "jobId": "job"}, "batch sink")
    assert RowSender(options, "job job", 0).send([pa.record_batch({"value": [b"row"]})]) == 1
    with SyncAdmin(cluster.namesrv) as admin:
        assert Counter(queue.broker_group for queue in admin.topic_route("sink-made").writable) == {
            "broker-a": 8,
            "broker-b": 8,
        }


@pytest.mark.long
def test_a_repeated_job_stores_no_row_twice_in_any_order(
    spark: SparkSession, cluster: LocalCluster, topic: str
) -> None:
    with pytest.raises(PySparkException, match="the task dies"):
        write(
            numbered_rows(spark, dies=partial(wait_until_stored, cluster.namesrv, topic)),
            cluster,
            topic=topic,
            jobId="job-1",
        )
    partly = stored(spark, cluster, topic)
    assert 0 < partly.total() < ROWS
    write(numbered_rows(spark, reverse=True), cluster, topic=topic, jobId="job-1")
    expected = Counter(row_text(number).encode() for number in range(ROWS))
    assert stored(spark, cluster, topic) == expected
    write(numbered_rows(spark), cluster, topic=topic, jobId="job-1")
    assert stored(spark, cluster, topic) == expected
    write(numbered_rows(spark), cluster, topic=topic, jobId="job-2")
    assert stored(spark, cluster, topic) == Counter(dict.fromkeys(expected, 4))


@pytest.mark.long
def test_equal_rows_of_later_batches_are_kept_and_a_copy_may_be_sliced_otherwise(
    spark: SparkSession, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("beats", queues=2)
    source = spark.readStream.format("dledger").option("namesrv", cluster.namesrv).option("subscribe", "beats")
    stream = source.option("startingOffsets", "earliest").load().writeStream.trigger(availableNow=True)
    stream = stream.option("checkpointLocation", str(tmp_path / "beats"))

    def each(frame: DataFrame, _: int) -> None:
        write(frame.select("value"), cluster, topic=topic, jobId="beats")

    for _ in range(2):
        with SyncProducer(cluster.namesrv, group="sink") as producer:
            producer.send("beats", b"alive")
        run_to_its_end(lambda: stream.foreachBatch(each).start())
    assert stored(spark, cluster, topic) == Counter({b"alive": 2})
    origin = ("value", "topic AS source_topic", "broker_group", "queue_id", "offset")
    for slices in (1, 3):
        rows = read(spark, cluster, "beats").selectExpr("explode(array(value, value)) AS value", *origin[1:])
        write(rows.repartition(slices, "source_topic", "queue_id", "offset"), cluster, topic=topic, jobId="copy")
    assert stored(spark, cluster, topic) == Counter({b"alive": 6})


def test_a_stream_copies_a_topic_exactly_once_while_its_leader_dies(
    spark: SparkSession, cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    sent = [b"%06d" % number for number in range(1000)]
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("copied", queues=2)
    with SyncProducer(cluster.namesrv, group="sink", idempotent=True) as producer:
        producer.send_batch("copied", sent[:500])
        producer.send_batch("copied", sent[500:])
    killed: list[str] = []

    def copy(doubtful: Callable[[], None] | None = None) -> None:
        source = spark.readStream.format("dledger").option("namesrv", cluster.namesrv).option("subscribe", "copied")
        source = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "300")
        writer = source.load().select("value").writeStream.format("dledger").option("namesrv", cluster.namesrv)
        writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "checkpoint"))
        if doubtful is not None:
            doubtful()
        run_to_its_end(lambda: writer.trigger(availableNow=True).start())

    try:
        copy(lambda: killed.append(cluster.kill_leader("broker-a")))
    finally:
        for node_id in killed:
            cluster.restart(node_id)
    cluster.wait_ready()
    assert stored(spark, cluster, topic) == Counter(sent)
    # Run the last micro-batch again, as after a crash between its end and the note of that.
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    copy()
    assert stored(spark, cluster, topic) == Counter(sent)


def test_writes_with_wrong_columns_or_modes_are_refused(spark: SparkSession, cluster: LocalCluster) -> None:
    with pytest.raises(PySparkException, match="'value': its type is int, a write takes BINARY or STRING: cast it"):
        write(spark.sql("SELECT 7 AS value"), cluster, topic="t")
    frame = spark.sql("SELECT 'v' AS value, 1 AS colour")
    with pytest.raises(PySparkException, match="'colour': a write takes key, value"):
        write(frame, cluster, topic="t")
    with pytest.raises(PySparkException, match=r"mode\(\"append\"\)"):
        frame.select("value").write.format("dledger").mode("overwrite").option("namesrv", cluster.namesrv).option(
            "topic", "t"
        ).save()
