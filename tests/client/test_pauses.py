"""No further messages of a paused queue are delivered, and all of them are after it resumes."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import fake_cluster, until
from consuming import fill, pulled, take

from dledger_client import MessageQueue, OrderlyConsumer, PullConsumer, PushConsumer
from dledger_client.consuming.pauses import Pauses

CLUSTER = {"topics": {"T": 2}}
FIRST, SECOND = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


async def test_a_paused_queue_is_neither_handed_out_nor_read_and_the_others_are(cluster):
    async with PushConsumer(cluster.namesrv, "CG", "T") as consumer:
        await until(lambda: {FIRST, SECOND} <= consumer.assignment)
        consumer.pause([FIRST])
        assert consumer.paused == {FIRST}
        fill(cluster, 100)
        fill(cluster, 10, queue_id=1)
        assert {message.queue for message in await take(consumer, 10)} == {SECOND}
        assert await consumer.receive(timeout=0) == []
        consumer.resume([FIRST])
        assert [message.queue_offset for message in await take(consumer, 100)] == list(range(100))
    assert cluster.group.offsets["CG", "T", 0] == 100


async def test_messages_handed_out_before_a_pause_can_be_committed():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 10)
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
            first, *_ = await take(consumer, 4)
            consumer.pause()
            assert await consumer.receive(timeout=0) == []
            first.ack()
            await consumer.commit()
            assert cluster.group.offsets["CG", "T", 0] == 1
            assert consumer.stalled == []


async def test_a_pause_of_all_queues_also_covers_queues_assigned_later(cluster):
    share = slice(1)

    def strategy(_client_id, _members, queues):
        return list(queues)[share]

    async with PushConsumer(cluster.namesrv, "CG", "T", strategy=strategy) as consumer:
        await until(lambda: FIRST in consumer.assignment)
        consumer.pause()
        share = slice(None)
        consumer._running.assignments.rebalance_soon()
        await until(lambda: SECOND in consumer.assignment)
        fill(cluster, 1, queues=(0, 1))
        assert await consumer.receive(timeout=0) == []
        consumer.resume([SECOND])
        assert [message.queue for message in await take(consumer, 1)] == [SECOND]
        assert FIRST in consumer.paused
        consumer.resume()
        assert [message.queue for message in await take(consumer, 1)] == [FIRST]


def test_an_orderly_consumer_has_the_same_calls():
    assert {"pause", "resume", "paused"} <= vars(OrderlyConsumer).keys()


async def test_a_poll_leaves_paused_queues_out_and_goes_on_where_they_were(cluster):
    fill(cluster, 4, queues=(0, 1))
    async with PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign([FIRST, SECOND])
        consumer.pause([FIRST])
        found = [await consumer.poll(2, 0.0) for _ in range(3)]
        assert [message.queue for messages in found for message in messages] == [SECOND] * 4
        assert consumer.positions[FIRST] == 0
        consumer.resume([FIRST])
        assert [message.queue_offset for message in await consumer.poll(10, 1.0)] == [0, 1, 2, 3]


async def test_a_poll_of_paused_queues_only_waits_and_finds_nothing():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        async with PullConsumer(cluster.namesrv, "CG") as consumer:
            await consumer.assign([FIRST])
            consumer.pause()
            assert consumer.paused == {FIRST}
            assert await consumer.poll(1, 0.01) == []


async def test_a_poll_ends_in_time_though_a_queue_is_paused_meanwhile(cluster, puller):
    await puller.assign([FIRST, SECOND])
    polling = asyncio.create_task(puller.poll(1, 0.2))
    await pulled(cluster, 0)
    puller.pause([FIRST])
    assert await polling == []


@pytest.mark.parametrize("everything", [False, True])
def test_the_last_pause_or_resume_of_a_queue_counts(everything):
    pauses = Pauses()
    pauses.set(None, paused=everything)
    pauses.set([FIRST], paused=not everything)
    assert ((FIRST in pauses), (SECOND in pauses)) == (not everything, everything)
    pauses.set([FIRST], paused=everything)
    assert ((FIRST in pauses), (SECOND in pauses)) == (everything, everything)
    pauses.set([SECOND], paused=not everything)
    pauses.set(None, paused=True)
    assert FIRST in pauses
    assert SECOND in pauses
