"""Consumers with a small read quota, stock ones and ours, get everything, only later."""

from __future__ import annotations

import pytest
from cluster_checks import bodies_of

from dledger_client import Quota, SyncAdmin, SyncProducer, SyncPullConsumer
from dledger_client.testing import LocalCluster

MESSAGES = 60
PER_SECOND = 20


@pytest.fixture
def topic(one_group: LocalCluster, request: pytest.FixtureRequest) -> str:
    """Create a topic with messages and a small read quota."""
    name = f"ReadQuota-{request.node.name}"
    with SyncAdmin(one_group.namesrv) as admin:
        admin.create_topic(name, queues=2)
        admin.put_quota(Quota("topic-reads", name, PER_SECOND))
    with SyncProducer(one_group.namesrv, group="PG") as producer:
        for number in range(MESSAGES):
            producer.send(name, f"body {number}".encode())
    return name


def held(cluster: LocalCluster, topic: str) -> int:
    with SyncAdmin(cluster.namesrv) as admin:
        return sum(row.held for rows in admin.quotas().values() for row in rows if row.name == topic)


def test_our_client_reads_everything_under_a_read_quota(one_group: LocalCluster, topic: str) -> None:
    found: set[str] = set()
    with SyncPullConsumer(one_group.namesrv, "slow-ours") as consumer:
        consumer.assign(consumer.queues(topic))
        consumer.seek_to_begin()
        while len(found) < MESSAGES:
            found.update(bodies_of(consumer.poll(MESSAGES, timeout=30.0)))
    assert found == {f"body {number}" for number in range(MESSAGES)}
    assert held(one_group, topic) > 0


def test_the_cpp_client_reads_everything_under_a_read_quota(one_group: LocalCluster, cpp, topic: str) -> None:
    client = cpp(one_group.namesrv)
    client.call("push", name="reader", group="slow-cpp", topic=topic)
    client.wait_for(lambda: len(set(client.bodies("reader"))) == MESSAGES, "all messages")
    assert held(one_group, topic) > 0
