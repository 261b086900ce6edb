"""Transactions of our client on a real cluster: seen once committed, never if rolled back, asked about if neither."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from dledger_client import Decision, OpenTransaction, PushConsumer, ReceivedMessage, RefusedError, TransactionProducer
from dledger_client.testing import LocalCluster

TOPIC = "payments"
CHECKED_WITHIN_S = 40.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = "transaction_timeout_ms = 500\ntransaction_check_interval_ms = 1000\ntransaction_check_max = 1000\n"
    with LocalCluster(config=config) as started:
        yield started


class Reader:
    """A consumer that reads until a message comes."""

    def __init__(self, last: bytes) -> None:
        self.seen: list[bytes] = []
        self._last = last
        self._has_come = asyncio.Event()

    async def handle(self, message: ReceivedMessage) -> None:
        self.seen.append(message.body)
        if message.body == self._last:
            self._has_come.set()

    async def until_last(self) -> list[bytes]:
        async with asyncio.timeout(CHECKED_WITHIN_S):
            await self._has_come.wait()
        return self.seen


async def commit_all(_: OpenTransaction) -> Decision:
    return "commit"


async def decide_nothing(_: OpenTransaction) -> Decision:
    return "unknown"


async def test_a_transaction_is_seen_when_it_is_committed_or_a_check_says_so(cluster: LocalCluster) -> None:
    asked: list[OpenTransaction] = []
    reader = Reader(b"forgotten")

    async def check(transaction: OpenTransaction) -> Decision:
        asked.append(transaction)
        return "commit"

    async with (
        TransactionProducer(cluster.namesrv, group="payers", check=check) as producer,
        PushConsumer(cluster.namesrv, "readers", {TOPIC: "*"}, reader.handle),
    ):
        rolled_back = await producer.begin(TOPIC, b"rolled back")
        await producer.rollback(rolled_back)
        with pytest.raises(RefusedError, match="is rolled back"):
            await producer.commit(rolled_back)
        committed = await producer.begin(TOPIC, b"committed", key="k", unique_key="mine")
        await producer.commit(committed)
        await producer.commit(committed)
        forgotten = await producer.begin(TOPIC, b"forgotten")
        assert await reader.until_last() == [b"committed", b"forgotten"]
    assert asked == [forgotten]


async def test_a_producer_that_has_begun_nothing_is_asked_for_one_that_is_gone(cluster: LocalCluster) -> None:
    reader = Reader(b"left behind")
    async with TransactionProducer(cluster.namesrv, group="heirs", check=decide_nothing) as gone:
        await gone.begin("estates", b"left behind")
    async with (
        PushConsumer(cluster.namesrv, "estate-readers", {"estates": "*"}, reader.handle),
        TransactionProducer(cluster.namesrv, group="heirs", check=commit_all),
    ):
        assert await reader.until_last() == [b"left behind"]


async def test_a_producer_ends_what_another_one_has_begun(cluster: LocalCluster) -> None:
    reader = Reader(b"handed over")
    async with TransactionProducer(cluster.namesrv, group="relay", check=decide_nothing) as first:
        transaction = await first.begin("batons", b"handed over")
    async with (
        PushConsumer(cluster.namesrv, "baton-readers", {"batons": "*"}, reader.handle),
        TransactionProducer(cluster.namesrv, group="relay", check=decide_nothing) as second,
    ):
        await second.commit(transaction)
        assert await reader.until_last() == [b"handed over"]
