"""Message traces on a real cluster: the traces that clients wrote are found by the id of a message."""

from __future__ import annotations

import json

import pytest
from cluster_checks import dledger

from dledger_client import (
    Decision,
    OpenTransaction,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
)
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.traces import kind_of

pytestmark = pytest.mark.long

PATIENCE_S = 30.0


cluster = local_cluster_fixture()


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


def test_the_end_of_a_transaction_is_traced(cluster: LocalCluster) -> None:
    def check(_transaction: OpenTransaction) -> Decision:
        return "unknown"

    with SyncTransactionProducer(cluster.namesrv, group="TG", check=check, timeout=PATIENCE_S, trace=True) as producer:
        transaction = producer.begin("followed-transactions", b"order")
        producer.commit(transaction)
    assert kinds(cluster, transaction.unique_key) == ["Pub", "EndTransaction"]
