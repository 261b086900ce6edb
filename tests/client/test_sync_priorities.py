"""Queues in order of priority in a program without an event loop: nothing taken ahead is in front of what comes."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import islice

import pytest
from client_fakes import fake_cluster, until
from consuming import fill

from dledger_client import SyncConsumer


@asynccontextmanager
async def blocking_consumer(cluster, **options):
    """A consumer for a program in a thread; its cluster runs on the test's loop."""
    consumer = await asyncio.to_thread(SyncConsumer, cluster.namesrv, "CG", "T", pull_batch_size=32, **options)
    try:
        yield consumer
    finally:
        await asyncio.to_thread(consumer.close)


async def queues_of(consumer, count):
    """The queues of the next messages."""
    messages = await asyncio.to_thread(lambda: list(islice(consumer, count)))
    return [message.queue_id for message in messages]


def buffered(consumer, queue_id):
    """How many messages of a queue are here and not taken."""
    fetchers = consumer._consumer._running.assignments.fetchers()
    return next(len(one.buffer) for one in fetchers if one.queue[::2] == ("T", queue_id))


async def test_a_blocking_consumer_drains_higher_queues_first():
    async with fake_cluster(topics={"T": 3}) as cluster:
        for queue_id in range(3):
            fill(cluster, 40, queue_id=queue_id)
        async with blocking_consumer(cluster, priority=True) as consumer:
            assert await queues_of(consumer, 120) == [2] * 40 + [1] * 40 + [0] * 40


@pytest.mark.parametrize(("priority", "high", "low"), [(True, 1, 0), (lambda queue: -queue.queue_id, 0, 1)])
async def test_what_comes_to_a_higher_queue_later_is_the_next_that_a_blocking_consumer_gets(priority, high, low):
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 30, queue_id=low)
        async with blocking_consumer(cluster, priority=priority) as consumer:
            assert await queues_of(consumer, 10) == [low] * 10
            for _ in range(2):
                fill(cluster, 1, queue_id=high)
                await until(lambda: buffered(consumer, high) == 1)
                assert await queues_of(consumer, 4) == [high] + [low] * 3
