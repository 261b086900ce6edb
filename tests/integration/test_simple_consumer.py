"""Messages are popped one by one on a real cluster.

They are shared, acknowledged, kept invisible for longer, and survive a leader kill.
"""

from __future__ import annotations

import asyncio

from cluster_checks import read_topic

from dledger_client import Admin, Producer, SimpleConsumer, Sql, SyncSimpleConsumer
from dledger_client.testing import LocalCluster, local_cluster_fixture

WITHIN_S = 40.0


cluster = local_cluster_fixture()


async def send(cluster: LocalCluster, topic: str, count: int, *, large: int = 0) -> set[bytes]:
    """Create a topic, send messages to it, the last one large, and return their bodies."""
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        await admin.create_topic(topic, queues=4)
        bodies = [b"%d" % number for number in range(count)]
        bodies[-1] += bytes(large)
        for number, body in enumerate(bodies):
            await producer.send(topic, body, properties={"n": str(number)})
        return set(bodies)


async def drain(consumer: SimpleConsumer, count: int) -> list[bytes]:
    """Pop and acknowledge `count` messages."""
    found: list[bytes] = []
    async with asyncio.timeout(WITHIN_S):
        while len(found) < count:
            for message in await consumer.receive(5, wait=1.0):
                assert await consumer.ack(message)
                found.append(message.body)
    return found


async def test_members_share_all_queues_and_each_message_goes_to_one(cluster: LocalCluster) -> None:
    bodies = await send(cluster, "shared", 40)
    async with (
        SimpleConsumer(cluster.namesrv, "sharers", "shared") as one,
        SimpleConsumer(cluster.namesrv, "sharers", "shared") as other,
    ):
        found = await asyncio.gather(drain(one, 20), drain(other, 20))
        assert sorted(body for each in found for body in each) == sorted(bodies)
        assert await one.receive(wait=0.0) == []


async def test_a_member_finishes_what_another_one_has_taken(cluster: LocalCluster) -> None:
    await send(cluster, "handed-over", 2)
    async with SimpleConsumer(cluster.namesrv, "handing-over", "handed-over") as one:
        taken = [*await one.receive(2), *await one.receive(2, wait=0.0)]
    async with SimpleConsumer(cluster.namesrv, "handing-over", "handed-over") as other:
        assert [await other.ack(message) for message in taken] == [True] * len(taken)


async def test_unacknowledged_messages_come_again_unless_hidden_for_longer(cluster: LocalCluster) -> None:
    await send(cluster, "again", 2, large=3_000_000)
    async with SimpleConsumer(cluster.namesrv, "slow", "again", invisible=2.0) as consumer:
        first: list[bytes] = []
        hidden = None
        while len(first) < 2:
            for message in await consumer.receive():
                first.append(message.body)
                if message.body == b"0":
                    hidden = await consumer.change_invisible(message, 600.0)
                    assert not await consumer.ack(message)
        async with asyncio.timeout(WITHIN_S):
            while not (again := await consumer.receive(wait=5.0)):
                pass
        assert [(message.topic, message.reconsume_times, len(message.body)) for message in again] == [
            ("again", 1, 3_000_001)
        ]
        assert await consumer.ack(again[0])
        assert hidden is not None
        assert await consumer.ack(hidden)
        assert not await consumer.ack(hidden)


async def test_a_rejected_message_is_a_dead_letter_of_the_group_at_once(cluster: LocalCluster) -> None:
    await send(cluster, "rejected", 2)
    async with SimpleConsumer(cluster.namesrv, "strict", "rejected", invisible=2.0) as consumer:
        for _ in range(2):
            (message,) = await consumer.receive(1)
            assert await (consumer.reject if message.body == b"0" else consumer.ack)(message)
        assert await consumer.receive(wait=3.0) == []
    (dead,) = await read_topic(cluster.namesrv, "%DLQ%strict")
    assert (dead.body, dead.topic) == (b"0", "rejected")


async def test_the_kill_of_a_leader_loses_nothing_and_shows_nothing_twice(cluster: LocalCluster) -> None:
    bodies = await send(cluster, "killed", 60)
    group = cluster.groups[0]
    async with SimpleConsumer(cluster.namesrv, "survivors", "killed", invisible=3.0, timeout=30.0) as consumer:
        done = await drain(consumer, 20)
        left = await consumer.receive(10)
        leader = cluster.kill_leader(group)
        acked = [message.body for message in left[:5] if await consumer.ack(message)]
        cluster.restart(leader)
        rest = await drain(consumer, 60 - 20 - len(acked))
        assert sorted({*done, *acked, *rest}) == sorted(bodies)
        assert len(done) + len(acked) + len(rest) == 60


async def test_members_may_want_some_messages_only(cluster: LocalCluster) -> None:
    await send(cluster, "filtered", 10)
    async with SimpleConsumer(cluster.namesrv, "picky", "filtered", filter=Sql("n >= 7")) as consumer:
        assert sorted(await drain(consumer, 3)) == [b"7", b"8", b"9"]
        assert await consumer.receive(wait=0.0) == []


async def test_a_group_that_is_reset_gets_messages_again(cluster: LocalCluster) -> None:
    await send(cluster, "reset", 3)
    async with SimpleConsumer(cluster.namesrv, "twice", "reset") as consumer, Admin(cluster.namesrv) as admin:
        await drain(consumer, 3)
        assert sum((await admin.reset_offsets("twice", "reset", "first")).values()) == 0
        assert len(await drain(consumer, 3)) == 3


def test_a_blocking_simple_consumer_receives_hides_and_acknowledges(cluster: LocalCluster) -> None:
    asyncio.run(send(cluster, "blocking", 1))
    with SyncSimpleConsumer(cluster.namesrv, "blockers", "blocking") as consumer:
        (message,) = consumer.receive(1)
        message = consumer.change_invisible(message, 60.0) or message
        assert consumer.ack(message)
