"""Transactions of our client on a real cluster: seen once committed, never if rolled back, asked about if neither."""

from __future__ import annotations

import asyncio

import pytest

from dledger_client import Decision, OpenTransaction, PushConsumer, RefusedError, TransactionProducer
from dledger_client.testing import LocalCluster

TOPIC = "payments"
CHECKED_WITHIN_S = 40.0


async def test_a_transaction_is_seen_when_it_is_committed_or_a_check_says_so() -> None:
    asked: list[OpenTransaction] = []
    seen: list[bytes] = []
    last = asyncio.Event()

    async def check(transaction: OpenTransaction) -> Decision:
        asked.append(transaction)
        return "commit"

    async def handle(message: object) -> None:
        seen.append(message.body)  # type: ignore[attr-defined]
        if seen[-1] == b"forgotten":
            last.set()

    async with (
        LocalCluster() as cluster,
        TransactionProducer(cluster.namesrv, group="payers", check=check) as producer,
        PushConsumer(cluster.namesrv, "readers", {TOPIC: "*"}, handle),
    ):
        rolled_back = await producer.begin(TOPIC, b"rolled back")
        await producer.rollback(rolled_back)
        with pytest.raises(RefusedError, match="is rolled back"):
            await producer.commit(rolled_back)
        committed = await producer.begin(TOPIC, b"committed", key="k", unique_key="mine")
        await producer.commit(committed)
        await producer.commit(committed)
        forgotten = await producer.begin(TOPIC, b"forgotten")
        async with asyncio.timeout(CHECKED_WITHIN_S):
            await last.wait()
    assert seen == [b"committed", b"forgotten"]
    assert asked == [forgotten]
