"""Batch reads of real clusters: both modes give the same rows, and read from followers only."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from dledger_client import Message, MessageQueue, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark import planning
from dledger_spark.errors import OptionError
from dledger_spark.filters import PushedFilters
from dledger_spark.options import read_options, write_options
from dledger_spark.partitions import LogSlice, QueueRange
from dledger_spark.planning import BatchPlanner
from dledger_spark.plans import Cluster
from dledger_spark.reading import read_partition

pytestmark = pytest.mark.long

ORDERS = 3000
COMPARED = [
    *("topic", "partition", "offset", "value", "key", "tags", "timestamp", "message_id", "born_timestamp"),
    *("born_host", "store_host", "reconsume_times", "physical_offset", "broker_group", "queue_id"),
]


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: LocalCluster) -> None:
    with (
        SyncAdmin(cluster.namesrv) as admin,
        SyncProducer(cluster.namesrv, group="filler", idempotent=True) as producer,
    ):
        admin.create_topic("orders", queues=4)
        admin.create_topic("again", queues=2)
        producer.send_batch("again", [b"of the deleted topic %d" % number for number in range(50)])
        producer.send("large", bytes(range(256)) * 40, tags="z")
        for start in range(0, ORDERS, 100):
            producer.send_batch("orders", [order(number) for number in range(start, start + 100)])
        admin.delete_topic("again")
        admin.create_topic("again", queues=2)
        queue = MessageQueue("again", "broker-b", 1)
        producer.send_batch("again", [b"of the new topic %d" % number for number in range(30)], queue=queue)


def order(number: int) -> Message:
    return Message(
        b"order %d " % number * (1 + number % 7),
        key=f"k{number}",
        tags="even" if number % 2 == 0 else None,
        properties={"number": str(number)} if number % 3 else None,
    )


def read(spark: SparkSession, cluster: LocalCluster, **options: object) -> DataFrame:
    reader = spark.read.format("dledger").option("namesrv", cluster.namesrv)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def leaders_of(cluster: LocalCluster) -> set[str]:
    return {cluster.leader(group) for group in cluster.groups}


def fresh_pages(urls: list[str]) -> list[str]:
    """Return current metrics: a page is computed at most once a second, and each new page shows more processor time."""
    stale = pages = [page(url) for url in urls]
    while any(new == old for new, old in zip(pages, stale, strict=True)):
        time.sleep(0.05)
        pages = [page(url) for url in urls]
    return pages


def page(url: str) -> str:
    return str(urllib.request.urlopen(url).read().decode())


def served(cluster: LocalCluster, leaders: set[str] | None = None) -> dict[str, int]:
    """Return the bytes of the log that each role has served, and the messages in answers to pulls.

    Bytes count by the node's role at that time. Pulls count by the node's role now, or by `leaders`.
    """
    leaders = leaders_of(cluster) if leaders is None else leaders
    served = {"leader": 0, "follower": 0, "leader pulls": 0, "follower pulls": 0}
    addresses = [cluster.client_address(node_id).split(":") for node_id in cluster.node_ids]
    pages = fresh_pages([f"http://{host}:{int(port) + 2}/metrics" for host, port in addresses])
    for node_id, text in zip(cluster.node_ids, pages, strict=True):
        figures = dict(re.findall(r"^dledger_broker_(\w+)_total\{.*\} (\S+)$", text, re.MULTILINE))
        for role in ("leader", "follower"):
            served[role] += round(float(figures[f"range_bytes_{role}"]))
        role = "leader" if node_id in leaders else "follower"
        served[f"{role} pulls"] += round(float(figures["messages_out"]))
    return served


def test_both_modes_give_every_message_and_the_same_rows(spark: SparkSession, cluster: LocalCluster) -> None:
    segments = read(spark, cluster, subscribe="orders,again,large", includeHeaders=True)
    queues = read(spark, cluster, subscribe="orders,again,large", includeHeaders=True, mode="queues")
    orders = segments.where(col("topic") == "orders")
    assert sorted(bytes(row.value) for row in orders.select("value").collect()) == sorted(
        order(number).body for number in range(ORDERS)
    )
    digests = [
        {tuple(map(str, row)) for row in frame.select(*COMPARED, "headers", "properties").collect()}
        for frame in (segments, queues)
    ]
    assert len(digests[0]) == ORDERS + 30 + 1
    assert digests[0] == digests[1]


def planned(cluster: LocalCluster, pushed: PushedFilters | None = None, **options: str) -> list[LogSlice | QueueRange]:
    given = {"namesrv": cluster.namesrv} | options
    return list(BatchPlanner(read_options(given, "batch"), pushed or PushedFilters()).partitions())


def test_a_pattern_leaves_out_the_topics_of_the_service(cluster: LocalCluster) -> None:
    options = read_options({"namesrv": cluster.namesrv, "subscribePattern": ".*"}, "batch")
    found = {queue.topic for queue in Cluster(options).queues()}
    with SyncAdmin(cluster.namesrv) as admin:
        info = admin.cluster_info()
    assert {"orders", "again"} <= found
    assert not found & {*info.broker_addr_table, *info.cluster_addr_table}
    assert not [topic for topic in found if topic.endswith("_REPLY_TOPIC")]


def test_pushed_filters_narrow_the_planned_ranges(cluster: LocalCluster) -> None:
    pushed = PushedFilters(topic=frozenset({"orders"}), partition=frozenset({1, 65_537}))
    pushed.offset.narrow(low=10, high=20)
    ranges = planned(cluster, pushed, subscribe="orders,again", mode="queues")
    assert {(part.queue.queue_id, part.start, part.end) for part in ranges} == {(1, 10, 20)}
    assert {part.queue.group for part in ranges} == {"broker-a", "broker-b"}
    nothing = PushedFilters()
    nothing.timestamp.narrow(high=1)
    assert planned(cluster, nothing, subscribe="orders") == []
    assert planned(cluster, subscribe="orders")


def test_tags_are_filtered_by_the_broker(cluster: LocalCluster) -> None:
    before = served(cluster)["follower pulls"]
    even = PushedFilters(tags=frozenset({"even"}))
    parts = planned(cluster, even, subscribe="orders", mode="queues", columns="tags")
    assert [tag for part in parts for batch in read_partition(part) for tag in batch["tags"].to_pylist()] == [
        "even"
    ] * (ORDERS // 2)
    last_of_ranges = len(parts)
    assert served(cluster)["follower pulls"] == before + ORDERS // 2 + last_of_ranges


def test_pushed_filters_change_no_result(spark: SparkSession, cluster: LocalCluster) -> None:
    time = read(spark, cluster, subscribe="orders", columns="timestamp").agg({"timestamp": "avg"}).first()[0]
    conditions = [
        (col("offset") >= 5) & (col("offset") < 9) & (col("partition") == 65_536 + 2),
        (col("timestamp") > lit(time).cast("timestamp")) & col("topic").isin("orders", "nothing"),
        (col("tags") == "even") & (col("queue_id") < 2),
        (col("tags") != "odd") & col("keys").startswith("k1") & ~col("keys").endswith("7"),
        col("tags").isNull() & col("keys").contains("9") & ~col("keys").isin("k9", "k19"),
        ~col("tags").isin("odd", "other") | (col("keys") == "k1"),
        col("keys").isNotNull() & ~(col("keys") == "k3") & (col("topic") == "orders"),
    ]
    for condition in conditions:
        counts = {
            read(spark, cluster, subscribe="orders,again", mode=mode, pushDownFilters=pushed).where(condition).count()
            for mode, pushed in (("segments", "false"), ("segments", "true"), ("queues", "true"))
        }
        assert len(counts) == 1, condition
        assert counts != {0}


AS_SPARK_SAYS_IT = {
    "number > 100 AND number <= 900": "cast(properties['number'] as int) between 101 and 900",
    "KEYS STARTSWITH 'k12' AND KEYS CONTAINS '4'": "keys like 'k12%' and keys like '%4%'",
    "nothing = 'x'": "properties['nothing'] = 'x'",
}


@pytest.mark.parametrize("expression", AS_SPARK_SAYS_IT)
def test_a_sql92_expression_selects_the_same_rows_as_spark(
    spark: SparkSession, cluster: LocalCluster, expression: str
) -> None:
    everything = read(spark, cluster, subscribe="orders,again")
    expected = sorted(row.physical_offset for row in everything.where(AS_SPARK_SAYS_IT[expression]).collect())
    assert bool(expected) is not expression.startswith("nothing")
    for mode in ("segments", "queues"):
        some = read(spark, cluster, subscribe="orders,again", mode=mode, sql=expression, columns="physical_offset")
        assert sorted(row.physical_offset for row in some.collect()) == expected


def test_tags_filters_that_are_pushed_and_an_expression_hold_together(
    spark: SparkSession, cluster: LocalCluster
) -> None:
    options = {"tags": "even || odd", "sql": "number > 1500", "pushDownFilters": "true"}
    some = read(spark, cluster, subscribe="orders", **options).where("keys like 'k20%' and offset >= 0")
    expected = [
        f"k{number}" for number in range(1501, ORDERS) if number % 2 == 0 and number % 3 and 2000 <= number < 2100
    ]
    assert sorted(row["keys"] for row in some.collect()) == expected


def test_a_frame_can_be_filtered_in_several_ways(spark: SparkSession, cluster: LocalCluster) -> None:
    frame = read(spark, cluster, subscribe="again")
    assert frame.where("offset < 1").union(frame).count() == frame.where("offset < 1").count() + 30


def test_tags_columns_and_offsets_select_the_rows(spark: SparkSession, cluster: LocalCluster) -> None:
    for mode in ("segments", "queues"):
        even = read(spark, cluster, subscribe="orders", tags="even || odd", columns="value,tags", mode=mode)
        assert even.columns == ["value", "tags"]
        assert {row.tags for row in even.collect()} == {"even"}
        assert even.count() == ORDERS // 2
        starts = {"again": {"broker-a": {"0": -2, "1": -1}, "broker-b": {"0": -1, "1": 3}}}
        ends = {"again": {"broker-a": {"0": -1, "1": -1}, "broker-b": {"0": 0, "1": 5}}}
        bounds = {"startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
        some = read(spark, cluster, subscribe="again", mode=mode, **bounds)
        assert {(row.broker_group, row.queue_id, row.offset) for row in some.collect()} == {
            ("broker-b", 1, 3),
            ("broker-b", 1, 4),
        }
        one = read(spark, cluster, assign='{"again":{"broker-b":[1]}}', mode=mode)
        assert {row.partition for row in one.collect()} == {65_537}


def test_offset_bounds_reduce_the_fetched_bytes(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MIN_SLICE_BYTES", 64 << 10)

    def fetched(parts: list[LogSlice | QueueRange]) -> tuple[int, set[tuple[int, int]]]:
        """Return the bytes that followers served for these parts, and the rows."""
        before = served(cluster)["follower"]
        batches = [batch for part in parts for batch in read_partition(part)]
        rows = [(row["partition"], row["offset"]) for batch in batches for row in batch.to_pylist()]
        assert len(set(rows)) == len(rows)
        return served(cluster)["follower"] - before, set(rows)

    whole, everything = fetched(planned(cluster, subscribe="orders", columns="partition,offset"))
    highest = {part: max(offset for at, offset in everything if at == part) for part, _ in everything}

    def offsets(share: float) -> str:
        queues = {part: round(last * share) for part, last in highest.items()}
        groups = {"broker-a": 0, "broker-b": 1}
        return json.dumps(
            {"orders": {g: {str(q): queues[o * 65_536 + q] for q in range(4)} for g, o in groups.items()}}
        )

    for bounds, low, high in (
        ({"endingOffsets": offsets(0.25)}, 0, 0.25),
        ({"startingOffsets": offsets(0.75)}, 0.75, 1.1),
        ({"startingOffsets": offsets(0.4), "endingOffsets": offsets(0.6)}, 0.4, 0.6),
    ):
        some, rows = fetched(planned(cluster, subscribe="orders", columns="partition,offset", **bounds))
        assert rows == {
            (part, offset)
            for part, offset in everything
            if round(highest[part] * low) <= offset and (high > 1 or offset < round(highest[part] * high))
        }
        assert some < whole / 2, bounds


def test_the_log_before_the_creation_of_a_topic_is_not_read(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MIN_SLICE_BYTES", 1 << 30)
    monkeypatch.setattr(planning, "MAX_SLICE_BYTES", 1 << 30)
    orders = planned(cluster, subscribe="orders", columns="broker_group,physical_offset")
    rows = [row for part in orders for batch in read_partition(part) for row in batch.to_pylist()]
    last = {group: max(r["physical_offset"] for r in rows if r["broker_group"] == group) for group in cluster.groups}
    again = planned(cluster, subscribe="again")
    assert again
    assert all(part.start > last[part.source.group] for part in again)


def test_starting_and_ending_timestamps_select_the_rows(spark: SparkSession, cluster: LocalCluster) -> None:
    frame = read(spark, cluster, subscribe="orders", columns="timestamp")
    times = sorted(round(row.timestamp.timestamp() * 1000) for row in frame.collect())
    middle = times[len(times) // 2]
    for mode in ("segments", "queues"):
        bounds = {"startingTimestamp": middle, "startingOffsetsByTimestampStrategy": "latest"}
        late = read(spark, cluster, subscribe="orders", mode=mode, **bounds).count()
        early = read(spark, cluster, subscribe="orders", mode=mode, endingTimestamp=middle).count()
        assert (early, late) == (sum(time < middle for time in times), sum(time >= middle for time in times))
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy"):
        read(spark, cluster, subscribe="orders", startingTimestamp=2**45).count()


def test_large_reads_are_shared_by_more_tasks(cluster: LocalCluster) -> None:
    ranges = planned(cluster, subscribe="orders", mode="queues", maxRecordsPerPartition="100")
    assert all(part.end - part.start <= 100 for part in ranges)
    assert sum(part.end - part.start for part in ranges) == ORDERS
    assert len(planned(cluster, subscribe="orders", mode="queues", minPartitions="20")) >= 20


def test_no_secret_stands_in_any_text(spark: SparkSession, cluster: LocalCluster, capfd: pytest.CaptureFixture) -> None:
    """A secret under a misspelled name is refused before it gets into a plan of Spark's."""
    secret, texts = "MARKED-SECRET", []
    good = {"namesrv": cluster.namesrv, "subscribe": "orders"}
    frame = spark.range(1).selectExpr("'v' AS value")
    for name in ("secretKey", "secret", "accesskey", "subscribe_"):
        bad = {**good, name: secret}
        for attempt in (
            lambda bad=bad: spark.read.format("dledger").options(**bad).load().collect(),
            lambda bad=bad: spark.readStream.format("dledger").options(**bad).load().isStreaming,
            lambda bad=bad: frame.write.format("dledger").mode("append").options(topic="orders", **bad).save(),
            lambda bad=bad: read_options(bad, "batch"),
            lambda bad=bad: write_options(bad, "batch sink"),
        ):
            with pytest.raises((PySparkException, OptionError)) as raised:
                attempt()
            texts.append(str(raised.value))
    assert all("namesrv" in text for text in texts), "each says which options there are"
    frame = spark.read.format("dledger").options(**good).load()
    frame.explain(extended=True)
    assert frame.count() == ORDERS
    events = Path(urllib.request.url2pathname(urlparse(spark.conf.get("spark.eventLog.dir")).path))
    texts += [path.read_text() for path in events.rglob("*") if path.is_file()]
    out, error = capfd.readouterr()
    assert "SparkListenerSQLExecutionStart" in "".join(texts)
    assert secret not in "".join([*texts, out, error])


def test_wrong_options_reach_the_user(spark: SparkSession, cluster: LocalCluster) -> None:
    with pytest.raises(PySparkException, match="option 'subscribe' is 'nothing': topic 'nothing' does not exist"):
        read(spark, cluster, subscribe="nothing").count()
    with pytest.raises(PySparkException, match="option 'readFrom' is 'x': allowed are follower, learner"):
        read(spark, cluster, subscribe="orders", readFrom="x")
    with pytest.raises(PySparkException, match="option 'secretkey' is no option") as refused:
        read(spark, cluster, subscribe="orders", secretKey="marked-secret")
    assert "marked-secret" not in str(refused.value)


def test_offsets_that_contradict_each_other_are_refused(cluster: LocalCluster) -> None:
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("order", queues=1, broker_groups=["broker-a"])
    starts, ends = '{"order":{"broker-a":{"0":9}}}', '{"order":{"broker-a":{"0":8}}}'
    options = {"namesrv": cluster.namesrv, "subscribe": "order", "failOnDataLoss": "false"}
    given = read_options(options | {"startingOffsets": starts, "endingOffsets": ends}, "batch")
    with pytest.raises(OptionError, match="order/broker-a/0 would end at 8, before startingOffsets"):
        BatchPlanner(given, PushedFilters()).partitions()
    given = read_options({"namesrv": cluster.namesrv, "assign": '{"nothing":[0]}'}, "batch")
    with pytest.raises(OptionError, match="topic 'nothing' does not exist"):
        BatchPlanner(given, PushedFilters()).partitions()


def test_no_byte_comes_from_a_leader(spark: SparkSession, cluster: LocalCluster) -> None:
    for _ in range(5):
        leaders = leaders_of(cluster)
        before = served(cluster, leaders)
        for mode in ("segments", "queues"):
            assert read(spark, cluster, subscribe="orders", mode=mode).count() == ORDERS
        after = served(cluster, leaders)
        if leaders_of(cluster) == leaders:
            break  # otherwise the leadership has changed, and a pull may count for the wrong role
    assert after["leader"] == 0
    assert after["leader pulls"] == before["leader pulls"]
    assert after["follower"] > before["follower"]
    assert after["follower pulls"] == before["follower pulls"] + ORDERS
    assert read(spark, cluster, subscribe="orders", readFrom="leader").count() == ORDERS
    assert served(cluster)["leader"] > 0


def test_reads_survive_the_death_of_any_node(spark: SparkSession, cluster: LocalCluster) -> None:
    expected = {(row.topic, row.partition, row.offset) for row in read(spark, cluster, subscribe="orders").collect()}
    for mode in ("segments", "queues"):
        follower = next(node for node in cluster.members("broker-b") if node != cluster.leader("broker-b"))
        killed = [cluster.kill_leader("broker-a"), follower]
        cluster.kill(follower)
        try:
            frame = read(spark, cluster, subscribe="orders", mode=mode)
            found = [(row.topic, row.partition, row.offset) for row in frame.collect()]
        finally:
            for node_id in killed:
                cluster.restart(node_id)
        assert len(found) == ORDERS
        assert set(found) == expected
        cluster.wait_ready()
