"""Queues in order of priority in a program without an event loop.

Messages that are buffered ahead never come before more urgent ones.
"""

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
    """Run a consumer for a program in a thread. Its cluster runs on the test's loop."""
    consumer = await asyncio.to_thread(SyncConsumer, cluster.namesrv, "CG", "T", pull_batch_size=32, **options)
    try:
        yield consumer
    finally:
        await asyncio.to_thread(consumer.close)


async def queues_of(consumer, count):
    """Return the queues of the next messages."""
    messages = await asyncio.to_thread(lambda: list(islice(consumer, count)))
    return [message.queue_id for message in messages]


def buffered(consumer, queue_id):
    """Return the number of messages of a queue that are here and not taken."""
    fetchers = consumer._client._running.assignments.fetchers()
    return next(len(one.buffer) for one in fetchers if one.queue[::2] == ("T", queue_id))


@pytest.mark.parametrize(("priority", "high", "low"), [(True, 1, 0), (lambda queue: -queue.queue_id, 0, 1)])
async def test_a_blocking_consumer_gets_a_later_message_of_a_higher_queue_next(priority, high, low):
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 30, queue_id=low)
        async with blocking_consumer(cluster, priority=priority) as consumer:
            assert await queues_of(consumer, 10) == [low] * 10
            for _ in range(2):
                fill(cluster, 1, queue_id=high)
                await until(lambda: buffered(consumer, high) == 1)
                assert await queues_of(consumer, 4) == [high] + [low] * 3
