"""Transactions of our client on a real cluster.

Messages are seen once committed, never if rolled back, and are checked back otherwise.
"""

from __future__ import annotations

import pytest
from commands import Bodies, until

from dledger_client import Decision, OpenTransaction, PushConsumer, RefusedError, TransactionProducer
from dledger_client.testing import LocalCluster, local_cluster_fixture

TOPIC = "payments"


cluster = local_cluster_fixture(
    config="transaction_timeout_ms = 500\ntransaction_check_interval_ms = 1000\ntransaction_check_max = 1000\n"
)


async def commit_all(_: OpenTransaction) -> Decision:
    return "commit"


async def decide_nothing(_: OpenTransaction) -> Decision:
    return "unknown"


async def test_a_transaction_is_seen_after_its_commit_or_a_committing_check(cluster: LocalCluster) -> None:
    asked: list[OpenTransaction] = []
    seen = Bodies()

    async def check(transaction: OpenTransaction) -> Decision:
        asked.append(transaction)
        return "commit"

    async with (
        TransactionProducer(cluster.namesrv, group="payers", check=check) as producer,
        PushConsumer(cluster.namesrv, "readers", {TOPIC: "*"}, seen),
    ):
        rolled_back = await producer.begin(TOPIC, b"rolled back")
        await producer.rollback(rolled_back)
        with pytest.raises(RefusedError, match="is rolled back"):
            await producer.commit(rolled_back)
        committed = await producer.begin(TOPIC, b"committed", key="k", unique_key="mine")
        await producer.commit(committed)
        await producer.commit(committed)
        forgotten = await producer.begin(TOPIC, b"forgotten")
        await until(lambda: len(seen) >= 2)
        assert seen == [b"committed", b"forgotten"]
    assert asked == [forgotten]


async def test_another_producer_of_the_group_is_asked_for_a_departed_producer(cluster: LocalCluster) -> None:
    seen = Bodies()
    async with TransactionProducer(cluster.namesrv, group="heirs", check=decide_nothing) as gone:
        await gone.begin("estates", b"left behind")
    async with (
        PushConsumer(cluster.namesrv, "estate-readers", {"estates": "*"}, seen),
        TransactionProducer(cluster.namesrv, group="heirs", check=commit_all),
    ):
        await until(lambda: len(seen) >= 1)
        assert seen == [b"left behind"]


async def test_a_producer_can_end_a_transaction_of_another_producer(cluster: LocalCluster) -> None:
    seen = Bodies()
    async with TransactionProducer(cluster.namesrv, group="relay", check=decide_nothing) as first:
        transaction = await first.begin("batons", b"handed over")
    async with (
        PushConsumer(cluster.namesrv, "baton-readers", {"batons": "*"}, seen),
        TransactionProducer(cluster.namesrv, group="relay", check=decide_nothing) as second,
    ):
        await second.commit(transaction)
        await until(lambda: len(seen) >= 1)
        assert seen == [b"handed over"]
