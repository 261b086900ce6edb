"""Message traces on a real cluster: what clients wrote is found by the id of a message."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster_checks import dledger

from dledger_client import (
    Decision,
    NoRouteError,
    OpenTransaction,
    Producer,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
)
from dledger_client.testing import LocalCluster
from dledger_remoting.traces import kind_of

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        yield started


def kinds(cluster: LocalCluster, message_id: str, topic: str = "RMQ_SYS_TRACE_TOPIC") -> list[str]:
    with SyncAdmin(cluster.namesrv) as admin:
        return [kind_of(trace) for trace in admin.message_trace(message_id, topic=topic)]


def test_a_message_is_followed_from_its_producer_to_its_consumers(cluster: LocalCluster) -> None:
    with SyncProducer(cluster.namesrv, group="PG", trace=True, timeout=PATIENCE_S) as producer:
        sent = producer.send("followed", b"hello", key="k")
        asked = producer.send("followed", b"later", delay_s=3600)
        producer.recall("followed", asked.recall_handle or "")
    with SyncConsumer(cluster.namesrv, "readers", "followed", trace=True) as consumer:
        next(consumer).ack()
    with SyncSimpleConsumer(cluster.namesrv, "takers", "followed", trace=True) as taker:
        (message,) = taker.receive(wait=PATIENCE_S)
        assert taker.ack(message)
    assert kinds(cluster, sent.message_id) == ["Pub", "SubBefore", "SubAfter", "SubBefore", "SubAfter"]
    assert kinds(cluster, asked.message_id) == ["Pub", "Recall"]
    shown = json.loads(dledger("message", "trace", sent.message_id, "--namesrv", cluster.namesrv, "-o", "json"))
    assert [one["group"] for one in shown] == ["PG", "readers", "readers", "takers", "takers"]
    assert "stored by" in dledger("message", "trace", sent.message_id, "--namesrv", cluster.namesrv)


def test_how_a_transaction_ended_is_traced(cluster: LocalCluster) -> None:
    def check(_transaction: OpenTransaction) -> Decision:
        return "unknown"

    with SyncTransactionProducer(cluster.namesrv, group="TG", check=check, timeout=PATIENCE_S, trace=True) as producer:
        transaction = producer.begin("followed-transactions", b"order")
        producer.commit(transaction)
    assert kinds(cluster, transaction.unique_key) == ["Pub", "EndTransaction"]


async def test_traces_go_to_the_topic_that_is_named_and_a_killed_leader_costs_none_of_those_that_fit(
    cluster: LocalCluster,
) -> None:
    async with Producer(cluster.namesrv, trace="OwnTraces", timeout=PATIENCE_S) as producer:
        first = await producer.send("followed", b"before")
        killed = cluster.kill_leader()
        second = await producer.send("followed", b"behind")
        assert producer.traces_dropped == 0
    cluster.restart(killed)
    cluster.wait_ready()
    for sent in (first, second):
        assert kinds(cluster, sent.message_id, "OwnTraces") == ["Pub"]
        with pytest.raises(NoRouteError):
            kinds(cluster, sent.message_id, "NobodyTracesHere")
