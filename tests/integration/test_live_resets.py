"""Groups on a real cluster are reset while their consumers run: back, to the end, and while the leader dies."""

from __future__ import annotations

import pytest
from commands import Bodies, until

from dledger_client import Admin, OrderlyConsumer, Producer, PushConsumer
from dledger_client.testing import LocalCluster, local_cluster_fixture

cluster = local_cluster_fixture()


async def send(cluster: LocalCluster, topic: str, count: int) -> None:
    async with Admin(cluster.namesrv) as admin, Producer(cluster.namesrv) as producer:
        if topic not in await admin.topics():
            await admin.create_topic(topic, queues=2)
        for number in range(count):
            await producer.send(topic, b"%d" % number)


@pytest.mark.parametrize("kind", [PushConsumer, OrderlyConsumer])
async def test_consumers_go_back_and_to_the_end(cluster: LocalCluster, kind: type[PushConsumer]) -> None:
    topic = f"back-{kind.__name__}"
    group = f"readers-{kind.__name__}"
    await send(cluster, topic, 10)
    seen = Bodies()
    async with Admin(cluster.namesrv) as admin, kind(cluster.namesrv, group, topic, seen, start_from="first"):
        await until(lambda: len(seen) >= 10)
        assert set((await admin.reset_offsets(group, topic, "first")).values()) == {0}
        await until(lambda: len(seen) >= 20)
        assert sorted(seen) == sorted([b"%d" % number for number in range(10)] * 2)
        await admin.reset_offsets(group, topic, "last")
        await send(cluster, topic, 1)
        await until(lambda: len(seen) >= 21)


async def test_a_reset_survives_the_leader_and_consumers_obey_it(cluster: LocalCluster) -> None:
    await send(cluster, "kept", 10)
    seen = Bodies()
    async with (
        Admin(cluster.namesrv) as admin,
        PushConsumer(cluster.namesrv, "keepers", "kept", seen, start_from="first") as consumer,
    ):
        await until(lambda: len(seen) >= 10)
        await consumer.commit()
        await admin.reset_offsets("keepers", "kept", "first")
        cluster.kill_leader()
        await until(lambda: len(seen) >= 20)


async def test_a_group_is_copied_and_the_copy_goes_on_there(cluster: LocalCluster) -> None:
    await send(cluster, "copied", 4)
    async with Admin(cluster.namesrv) as admin:
        async with PushConsumer(cluster.namesrv, "source", "copied", start_from="first", auto_ack=False) as consumer:
            for message in await consumer.receive(1):
                message.ack()
            await consumer.commit()
        await admin.clone_offsets("source", "target")
        found = [await admin.offsets(group, "copied") for group in ("source", "target")]
        source, target = ([(one.queue, one.committed) for one in offsets] for offsets in found)
        assert source == target
