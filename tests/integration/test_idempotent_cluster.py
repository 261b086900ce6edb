"""Idempotent sends on a cluster of real processes: exactly once, through a leader's death and a restart."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import islice

import msgspec
import pytest
from cluster_checks import read_topic

from dledger_client import Admin, MessageQueue, Producer, SendResult
from dledger_client.testing import LocalCluster, local_cluster_fixture

pytestmark = pytest.mark.long

cluster = local_cluster_fixture(scope="module")


async def stored_bodies(cluster: LocalCluster, topic: str) -> Counter[bytes]:
    """Return the number of stored copies of each body."""
    return Counter(message.body for message in await read_topic(cluster.namesrv, topic))


async def send_all(producer: Producer, topic: str, bodies: list[bytes]) -> list[SendResult]:
    return list(await asyncio.gather(*(producer.send(topic, body, unique_key=body.decode()) for body in bodies)))


async def test_a_leaders_death_in_mid_flight_makes_no_message_lost_or_stored_twice(cluster: LocalCluster) -> None:
    topic = "killed"
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=4)
    bodies = [b"%d" % number for number in range(3000)]
    async with Producer(cluster.namesrv, group="EXACT", idempotent=True, timeout=30, max_in_flight=400) as producer:
        sends = [asyncio.create_task(producer.send(topic, body, unique_key=body.decode())) for body in bodies]
        for acknowledged in islice(asyncio.as_completed(sends), 500):
            await acknowledged
        killed = await asyncio.to_thread(cluster.kill_leader)
        results = await asyncio.gather(*sends)
        assert await stored_bodies(cluster, topic) == dict.fromkeys(bodies, 1)
        again = await send_all(producer, topic, bodies)
        assert sorted(result.offset_message_id for result in again) == sorted(
            result.offset_message_id for result in results
        )
        assert await stored_bodies(cluster, topic) == dict.fromkeys(bodies, 1)
    await asyncio.to_thread(cluster.restart, killed)
    await asyncio.to_thread(cluster.wait_ready)


async def test_a_restarted_cluster_still_recognises_repeated_sends(cluster: LocalCluster) -> None:
    topic = "restarted"
    async with Admin(cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=4)
    bodies = [b"%d" % number for number in range(100)]
    async with Producer(cluster.namesrv, group="EXACT", idempotent=True, timeout=30) as producer:
        first = await send_all(producer, topic, bodies)
        queue = MessageQueue(topic, "broker-a", 0)
        batch = await producer.send_batch(topic, [b"a", b"b"], queue=queue)
        for node_id in cluster.node_ids:
            await asyncio.to_thread(cluster.kill, node_id)
        for node_id in cluster.node_ids:
            await asyncio.to_thread(cluster.restart, node_id)
        await asyncio.to_thread(cluster.wait_ready)
        again = await send_all(producer, topic, bodies)
        assert all(result.repeated for result in again)
        assert [msgspec.structs.replace(result, repeated=False) for result in again] == first
        changed = await producer.send(topic, b"other", unique_key="0")
        assert changed.offset_message_id not in {result.offset_message_id for result in first}
        assert len({result.queue_offset for result in batch}) == 2
    assert sum((await stored_bodies(cluster, topic)).values()) == 103


async def test_pins_are_seen_and_released_by_the_administration(cluster: LocalCluster) -> None:
    async with Admin(cluster.namesrv) as admin:
        expires = await admin.pin("nightly", 0, broker_group="broker-a", lease_seconds=600)
        [row] = (await admin.pins())["broker-a"]
        assert (row.name, row.position, row.expires) == ("nightly", 0, expires)
        await admin.unpin("nightly")
        assert await admin.pins() == {"broker-a": []}
