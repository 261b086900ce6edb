"""`python -m bench.spark`: measures how fast Spark reads topics.

For comparison it measures a source that makes such rows from nothing, a Parquet read of the same rows, and a plain
consumer. Everything runs on this machine: three nodes, the name server, Spark with `local[2]`. Needs the extra `spark`.
"""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from bench.limits import memory_copy_gb_per_s
from bench.spark_ceiling import NothingSource
from bench.stopping import stop_on_sigterm
from bench.usage import cpu_seconds, family_cpu_seconds
from dledger_client import Admin, Message, Producer, PullConsumer
from dledger_client.testing import LocalCluster
from dledger_spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench"
QUEUES = 4
_BATCH = 1000
_POLL = 256


class Figure(msgspec.Struct, frozen=True):
    """One scenario: rows per second of every run, and CPU time in µs per row, of the reader and of all nodes."""

    name: str
    rows_per_s: list[float]
    reader_us_per_row: list[float]
    nodes_us_per_row: list[float]

    def __str__(self) -> str:
        rate, reader, nodes = map(statistics.median, (self.rows_per_s, self.reader_us_per_row, self.nodes_us_per_row))
        return f"{self.name:<56} {rate:>10,.0f} rows/s  CPU {reader:5.1f} + {nodes:4.1f} µs/row"


class SparkReport(msgspec.Struct, frozen=True):
    """All results of one invocation. `micro_batch_s` are the durations of small micro-batches after the first."""

    messages: int
    value_bytes: int
    memory_copy_gb_per_s: float
    figures: list[Figure]
    micro_batch_s: list[float]


async def fill(namesrv: str, messages: int, value_bytes: int) -> None:
    """Send messages with a key, a tag and two properties each."""
    value = bytes(range(256)) * (value_bytes // 256 + 2)
    async with Admin(namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)
    async with Producer(namesrv, group="bench-fill", timeout=60) as producer:

        async def batch(start: int) -> None:
            await producer.send_batch(
                TOPIC,
                [
                    Message(
                        value[number % 256 :][:value_bytes],
                        key=f"key-{number}",
                        tags="odd" if number % 2 else "even",
                        properties={"trace": f"{number:016x}", "origin": "bench"},
                    )
                    for number in range(start, min(start + _BATCH, messages))
                ],
            )

        for start in range(0, messages, 4 * _BATCH):
            await asyncio.gather(*(batch(at) for at in range(start, min(start + 4 * _BATCH, messages), _BATCH)))


async def consume(namesrv: str, messages: int) -> int:
    """Read everything with a plain pull consumer. Returns the sum of the lengths of the bodies."""
    total = count = 0
    async with PullConsumer(namesrv, "bench-reader") as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        await consumer.seek_to_begin()
        while count < messages:
            for message in await consumer.poll(max_messages=_POLL):
                total += len(message.body)
                count += 1
    return total


def timed(cluster: LocalCluster, messages: int, runs: int, queries: dict[str, Callable[[], object]]) -> list[Figure]:
    """Run every query once to warm up, then all of them in turn, so that disturbances hit all alike."""
    figures = [Figure(name, [], [], []) for name in queries]
    nodes = [pid for node in cluster.node_ids if (pid := cluster.pid(node)) is not None]
    for turn in range(runs + 1):
        for figure, query in zip(figures, queries.values(), strict=True):
            began, *used_before = time.perf_counter(), family_cpu_seconds(os.getpid()), sum(map(cpu_seconds, nodes))
            query()
            ended, *used = time.perf_counter(), family_cpu_seconds(os.getpid()), sum(map(cpu_seconds, nodes))
            if turn:
                figure.rows_per_s.append(messages / (ended - began))
                figure.reader_us_per_row.append((used[0] - used_before[0]) / messages * 1e6)
                figure.nodes_us_per_row.append((used[1] - used_before[1]) / messages * 1e6)
    for figure in figures:
        click.echo(str(figure))
    return figures


def scan(frame: "DataFrame") -> object:
    """Read every value: count the rows, sum the lengths."""
    return frame.selectExpr("count(*)", "sum(length(value))").first()


def micro_batches(spark: "SparkSession", cluster: LocalCluster, folder: Path, count: int) -> list[float]:
    """Return the durations in seconds of micro-batches of a few rows, without the first."""
    stream = spark.readStream.format("dledger").option("namesrv", cluster.namesrv).option("subscribe", "small").load()
    writer = stream.selectExpr("value").writeStream.format("parquet").option("checkpointLocation", str(folder / "c"))
    query = writer.start(str(folder / "small"))
    durations: list[float] = []
    try:
        for number in range(count + 1):
            asyncio.run(_send_small(cluster.namesrv, number))
            query.processAllAvailable()
        durations += [
            progress["durationMs"]["triggerExecution"] / 1000
            for progress in query.recentProgress
            if progress["numInputRows"]
        ]
    finally:
        query.stop()
    return durations[1:]


async def _send_small(namesrv: str, number: int) -> None:
    async with Producer(namesrv, group="bench-small") as producer:
        await producer.send("small", b"%d" % number)


def measure(cluster: LocalCluster, folder: Path, messages: int, value_bytes: int, runs: int) -> SparkReport:
    """Run all scenarios on one filled cluster."""
    asyncio.run(fill(cluster.namesrv, messages, value_bytes))
    asyncio.run(_send_small(cluster.namesrv, -1))
    cluster.wait_ready()
    spark = spark_session("local[2]", config={"spark.log.level": "ERROR", "spark.driver.memory": "1g"})

    def load(**options: str) -> "DataFrame":
        reader = spark.read.format("dledger").option("namesrv", cluster.namesrv).option("subscribe", TOPIC)
        return reader.options(**options).load()

    spark.dataSource.register(NothingSource)

    def from_nothing(**options: str) -> "DataFrame":
        return spark.read.format("nothing").options(rows=messages, valueBytes=value_bytes, **options).load()

    def to_parquet(frame: "DataFrame", name: str) -> None:
        frame.write.mode("overwrite").parquet(str(folder / name))

    queries: dict[str, Callable[[], object]] = {
        "segments, columns=value: count, sum of lengths": lambda: scan(load(columns="value")),
        "the same from nothing": lambda: scan(from_nothing(columns="value")),
        "segments, all columns: count, sum of lengths": lambda: scan(load()),
        "segments, all columns and headers: to Parquet": lambda: to_parquet(load(includeHeaders="true"), "rows"),
        "the same from nothing, to Parquet": lambda: to_parquet(from_nothing(includeHeaders="true"), "nothing"),
        "queues, columns=value: count, sum of lengths": lambda: scan(load(columns="value", mode="queues")),
        "Parquet of the same rows: count, sum of lengths": lambda: scan(spark.read.parquet(str(folder / "rows"))),
        "plain pull consumer, one process": lambda: asyncio.run(consume(cluster.namesrv, messages)),
    }
    try:
        figures = timed(cluster, messages, runs, queries)
        durations = micro_batches(spark, cluster, folder, runs + 3)
    finally:
        spark.stop()
    return SparkReport(messages, value_bytes, memory_copy_gb_per_s(1.0), figures, durations)


@click.command()
@click.option(
    "--messages", default=300_000, show_default=True, type=click.IntRange(1000), help="Number of messages in the log."
)
@click.option(
    "--value-bytes", default=1024, show_default=True, type=click.IntRange(1), help="Size of a message, in bytes."
)
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Number of runs per scenario.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="JSON file with every run.")
def main(*, messages: int, value_bytes: int, runs: int, output: Path | None) -> None:
    """Measure Spark's reads of a three-node cluster on this machine."""
    stop_on_sigterm()
    with (
        tempfile.TemporaryDirectory(prefix="dledger-bench-") as name,
        LocalCluster(config='flush = "async"') as cluster,
    ):
        report = measure(cluster, Path(name), messages, value_bytes, runs)
    batches = statistics.median(report.micro_batch_s)
    click.echo(f"micro-batch of one row, median {batches:.2f} s; memory copy {report.memory_copy_gb_per_s:.1f} GB/s")
    if output is not None:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2))


if __name__ == "__main__":
    sys.exit(main())
