"""Messages for later on a cluster of real processes: taken back, given back, with and without an event loop."""

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
    PushConsumer,
    RefusedError,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncTransactionProducer,
)
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.properties import TIMER_DELAY_MS

cluster = local_cluster_fixture(
    scope="module", config="transaction_timeout_ms = 500\ntransaction_check_interval_ms = 1000\n"
)
MESSAGES = 50


async def bodies_until(consumer: PushConsumer, last: bytes) -> list[bytes]:
    bodies: list[bytes] = []
    async with asyncio.timeout(60):
        async for message in consumer:
            bodies.append(message.body)
            if message.body == last:
                message.ack()
                break
    return bodies


async def test_what_is_taken_back_over_a_killed_leader_is_never_seen(cluster: LocalCluster) -> None:
    """Each recall ends, for it is repeated until its outcome is known; what was too late is seen."""
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


async def test_a_message_comes_again_when_its_consumer_asked_for_it(cluster: LocalCluster) -> None:
    topic = "given-back"
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic(topic, queues=1)
        await producer.send(topic, b"again")
    async with PushConsumer(cluster.namesrv, "givers", topic) as consumer, asyncio.timeout(60):
        first = await anext(consumer)
        consumer.nack(first, delay_s=0.3)
        again = await anext(consumer)
        again.ack()
    assert (again.body, again.topic, again.reconsume_times) == (b"again", topic, 1)
    assert again.properties[TIMER_DELAY_MS] == "300"
    assert "DELAY" not in again.properties


def test_programs_without_an_event_loop_do_the_same(cluster: LocalCluster) -> None:
    topic = "blocking-later"
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queues=1)
    with SyncProducer(cluster.namesrv) as producer:
        dropped = producer.send(topic, Message(b"dropped", delay_s=3600))
        assert producer.recall(topic, dropped.recall_handle or "") == dropped.message_id
        producer.send(topic, b"kept", delay_s=0.5)
    with SyncConsumer(cluster.namesrv, "blocking", topic) as consumer:
        first = next(consumer)
        consumer.nack(first, delay_s=0.2)
        again = next(consumer)
        again.ack()
    assert [(one.body, one.reconsume_times) for one in (first, again)] == [(b"kept", 0), (b"kept", 1)]


def test_a_blocking_producer_of_transactions_is_asked_about_what_it_has_not_ended(cluster: LocalCluster) -> None:
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
