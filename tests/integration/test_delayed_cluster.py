"""Delayed messages on a cluster of real processes: delivered once, through a leader's death and a restart of all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from cluster_checks import read_topic

from dledger_client import Admin, Producer
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.properties import START_DELIVER_TIME

cluster = local_cluster_fixture(scope="module")
MESSAGES = 200


async def send_delayed(producer: Producer, topic: str, due_ms: int) -> list[bytes]:
    """Have messages taken that are due at a time; returns their bodies."""
    bodies = [b"%d" % number for number in range(MESSAGES)]
    properties = {START_DELIVER_TIME: str(due_ms)}
    await asyncio.gather(*(producer.send(topic, body, properties=properties) for body in bodies))
    return bodies


async def delivered(cluster: LocalCluster, topic: str, count: int) -> dict[bytes, list[int]]:
    """The store times of each body, once there are so many."""
    while True:
        found: dict[bytes, list[int]] = {}
        for message in await read_topic(cluster.namesrv, topic):
            found.setdefault(message.body, []).append(message.stored_timestamp_ms)
        if sum(map(len, found.values())) >= count:
            return found
        await asyncio.sleep(0.2)


async def test_a_later_leader_delivers_each_message_once_when_it_is_due(cluster: LocalCluster) -> None:
    topic = "later"
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, group="LATE", timeout=30) as producer:
        await admin.create_topic(topic, queues=4)
        due_ms = int(time.time() * 1000) + 6_000
        bodies = await send_delayed(producer, topic, due_ms)
        assert not await read_topic(cluster.namesrv, topic)
        killed = await asyncio.to_thread(cluster.kill_leader)
        async with asyncio.timeout(60):
            found = await delivered(cluster, topic, len(bodies))
        assert Counter({body: len(times) for body, times in found.items()}) == dict.fromkeys(bodies, 1)
        assert min(min(times) for times in found.values()) >= due_ms
    await asyncio.to_thread(cluster.restart, killed)
    await asyncio.to_thread(cluster.wait_ready)


async def test_nodes_that_start_anew_deliver_what_waits(cluster: LocalCluster) -> None:
    topic = "anew"
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv, group="LATE", timeout=30) as producer:
        await admin.create_topic(topic, queues=4)
        bodies = await send_delayed(producer, topic, int(time.time() * 1000) + 5_000)
    for node in cluster.node_ids:
        await asyncio.to_thread(cluster.restart, node)
    await asyncio.to_thread(cluster.wait_ready)
    async with asyncio.timeout(60):
        found = await delivered(cluster, topic, len(bodies))
    assert Counter({body: len(times) for body, times in found.items()}) == dict.fromkeys(bodies, 1)
