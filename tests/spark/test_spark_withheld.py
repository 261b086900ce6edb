"""Spark reads withheld messages exactly once, after they are due or committed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from streams import run_to_its_end

from dledger_client import Decision, OpenTransaction, Producer, SyncAdmin, TransactionProducer
from dledger_client.testing import LocalCluster
from dledger_remoting.properties import START_DELIVER_TIME

pytestmark = pytest.mark.long

TOPIC = "payments"
HOUR_MS = 3_600_000
DUE_AFTER_MS = 1_000
ARRIVES_WITHIN_S = 60.0
SEEN = [b"committed 0", b"committed 1", b"due", b"plain"]


async def undecided(_: OpenTransaction) -> Decision:
    return "unknown"


async def send_all(name_server: str) -> None:
    async with (
        Producer(name_server, group="payers") as producer,
        TransactionProducer(name_server, group="transacting-payers", check=undecided) as transactions,
    ):
        now_ms = time.time_ns() // 1_000_000
        for body, due_ms in ((b"due", now_ms + DUE_AFTER_MS), (b"not due", now_ms + HOUR_MS)):
            await producer.send(TOPIC, body, properties={START_DELIVER_TIME: str(due_ms), "mine": "kept"})
        await producer.send(TOPIC, b"plain")
        await transactions.begin(TOPIC, b"left open")
        await transactions.rollback(await transactions.begin(TOPIC, b"rolled back"))
        for number in range(2):
            committed = await transactions.begin(TOPIC, b"committed %d" % number, properties={"mine": "kept"})
            for _ in range(2):
                await transactions.commit(committed)


@pytest.fixture(scope="module", autouse=True)
def messages(cluster: LocalCluster) -> None:
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=2)
    asyncio.run(send_all(cluster.namesrv))


def read(spark: SparkSession, cluster: LocalCluster, **options: str) -> DataFrame:
    return spark.read.format("dledger").options(namesrv=cluster.namesrv, **options).load()


def rows(spark: SparkSession, cluster: LocalCluster, **options: str) -> list[Row]:
    """Return the rows of a topic once its delayed messages have been delivered. Each look is a read of its own."""
    give_up = time.monotonic() + ARRIVES_WITHIN_S
    while True:
        found = read(spark, cluster, includeHeaders="true", **options).orderBy("value").collect()
        if any(bytes(row.value) == b"due" for row in found):
            return found
        assert time.monotonic() < give_up, f"nothing was delivered in time: {found}"


@pytest.mark.parametrize("mode", ["segments", "queues"])
def test_only_messages_visible_to_consumers_are_read_and_once(
    spark: SparkSession, cluster: LocalCluster, mode: str
) -> None:
    found = rows(spark, cluster, subscribe=TOPIC, mode=mode)
    assert [bytes(row.value) for row in found] == SEEN
    assert {row.topic for row in found} == {TOPIC}
    headers = {bytes(row.value): [(header.key, bytes(header.value)) for header in row.headers] for row in found}
    assert headers == {value: [] if value == b"plain" else [("mine", b"kept")] for value in SEEN}


def test_a_stream_reads_a_transaction_behind_its_commit(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    def run() -> list[bytes]:
        stream = spark.readStream.format("dledger").options(
            namesrv=cluster.namesrv, subscribe="late-payments", startingOffsets="earliest", columns="value"
        )
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        run_to_its_end(lambda: writer.trigger(availableNow=True).start(str(tmp_path / "out")))
        return sorted(
            bytes(row.value) for row in spark.read.schema("value BINARY").parquet(str(tmp_path / "out")).collect()
        )

    async def begin(body: bytes) -> OpenTransaction:
        async with TransactionProducer(cluster.namesrv, group="late", check=undecided) as producer:
            return await producer.begin("late-payments", body)

    async def commit(transaction: OpenTransaction) -> None:
        async with TransactionProducer(cluster.namesrv, group="late", check=undecided) as producer:
            await producer.commit(transaction)

    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic("late-payments", queues=1)
    first, second = asyncio.run(begin(b"first")), asyncio.run(begin(b"second"))
    asyncio.run(commit(second))
    assert run() == [b"second"]
    asyncio.run(commit(first))
    asyncio.run(commit(second))
    assert run() == [b"first", b"second"]
