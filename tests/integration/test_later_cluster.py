"""Delayed messages on a cluster of real processes: recalled, given back, with and without an event loop."""

from __future__ import annotations

import asyncio
import threading

from cluster_checks import read_topic

from dledger_client import (
    Admin,
    Decision,
    Message,
    OpenTransaction,
    Producer,
    RefusedError,
    SyncAdmin,
    SyncConsumer,
    SyncTransactionProducer,
)
from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture(
    scope="module", config="transaction_timeout_ms = 500\ntransaction_check_interval_ms = 1000\n"
)
MESSAGES = 50


async def test_messages_recalled_during_a_leader_kill_are_never_seen(cluster: LocalCluster) -> None:
    """Each recall is repeated until its outcome is known. A message whose recall came too late is seen."""
    topic = "taken-back"
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, idempotent=True, timeout=60) as producer:
        await admin.create_topic(topic, queues=4)
        messages = [Message(b"%d" % number, delay_s=10) for number in range(MESSAGES)]
        sent = await asyncio.gather(*(producer.send(topic, message) for message in messages))
        recalls = [asyncio.create_task(producer.recall(topic, one.recall_handle or "")) for one in sent[::2]]
        killed = await asyncio.to_thread(cluster.kill_leader)
        ended = await asyncio.gather(*recalls, return_exceptions=True)
        too_late = [ended for ended in ended if isinstance(ended, RefusedError)]
        assert [one for one in ended if not isinstance(one, str)] == too_late
        await producer.send(topic, b"last", delay_s=11, ordering_key="last")
        seen: set[bytes] = set()
        async with asyncio.timeout(60):
            while b"last" not in seen:
                seen = {message.body for message in await read_topic(cluster.namesrv, topic)}
                await asyncio.sleep(0.2)
    taken_back = {
        b"%d" % number for number, one in zip(range(0, MESSAGES, 2), ended, strict=True) if one not in too_late
    }
    assert seen == {message.body for message in messages} - taken_back | {b"last"}
    await asyncio.to_thread(cluster.restart, killed)
    await asyncio.to_thread(cluster.wait_ready)


def test_a_blocking_producer_is_asked_about_its_unended_transactions(cluster: LocalCluster) -> None:
    topic = "blocking-halves"
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    asked = threading.Event()

    def check(transaction: OpenTransaction) -> Decision:
        assert threading.current_thread() is not threading.main_thread()
        asked.set()
        return "commit" if transaction.unique_key == "left" else "unknown"

    with SyncTransactionProducer(cluster.namesrv, group="blocking-shop", check=check) as producer:
        producer.begin(topic, b"left", unique_key="left")
        producer.rollback(producer.begin(topic, b"dropped"))
        producer.commit(producer.begin(topic, b"committed"))
        with SyncConsumer(cluster.namesrv, "blocking-buyers", topic) as consumer:
            seen = {next(consumer).body, next(consumer).body}
    assert seen == {b"left", b"committed"}
    assert asked.is_set()
