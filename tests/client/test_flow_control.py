"""Each limit of the group consumer's flow control pauses the reading of a queue, is counted, and lets it continue."""

from __future__ import annotations

import pytest
from client_fakes import fake_cluster, until
from consuming import ack, fill, take

from dledger_client import PushConsumer
from dledger_client.consuming.flow import FlowControl, ReadAhead
from dledger_client.consuming.progress import QueueProgress


def fetcher_of(consumer, queue_id=0):
    fetchers = consumer._running.assignments.fetchers()
    return next((one for one in fetchers if (one.queue.topic, one.queue.queue_id) == ("T", queue_id)), None)


def read_of(consumer, queue_id=0):
    """Return the number of messages of a queue that have been read and are not finished."""
    fetcher = fetcher_of(consumer, queue_id)
    return 0 if fetcher is None or fetcher.progress is None else fetcher.progress.outstanding


async def stops_at(consumer, count, queue_id=0):
    """Check that the reading of the queue pauses at this many messages."""
    await until(lambda: read_of(consumer, queue_id) == count and fetcher_of(consumer, queue_id).reading_stopped)


@pytest.mark.parametrize(
    ("limits", "reason", "read"),
    [
        ({"max_outstanding": 20}, "count", 20),
        ({"max_topic_outstanding": 30}, "count", 30),
        ({"max_outstanding_bytes": 60}, "bytes", 20),
        ({"max_topic_bytes": 61}, "bytes", 20),
        ({"max_span": 25}, "span", 30),
    ],
)
async def test_a_queue_is_read_up_to_each_limit_and_on_when_messages_are_finished(cluster, limits, reason, read):
    fill(cluster, 100)  # of 4 bytes each
    options = {"pull_batch_size": 10, "auto_ack": False, **limits}
    async with PushConsumer(cluster.namesrv, "CG", "T", **options) as consumer:
        await stops_at(consumer, read)
        assert consumer.flow_stops == {"count": 0, "bytes": 0, "span": 0, reason: 1}
        ack(await take(consumer, read))
        await stops_at(consumer, read)
        assert consumer.flow_stops[reason] == 2
        ack(await take(consumer, read))


async def test_queues_of_one_topic_have_equal_shares_of_its_limit():
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 100, queues=range(2))
        options = {"pull_batch_size": 10, "max_topic_outstanding": 40}
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, **options) as consumer:
            await stops_at(consumer, 20, 0)
            await stops_at(consumer, 20, 1)
            for message in await take(consumer, 40):
                if message.queue_id == 0:
                    message.ack()
            await stops_at(consumer, 20, 0)
            assert read_of(consumer, 1) == 20, "one queue that stands still takes nothing of the other's share"


async def test_a_share_grows_when_other_queues_go_to_another_member():
    share = slice(None)

    def strategy(_client_id, _members, queues):
        return list(queues)[share]

    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 100)
        options = {"pull_batch_size": 10, "max_topic_outstanding": 40, "strategy": strategy}
        async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, **options) as consumer:
            await stops_at(consumer, 20)
            share = slice(1)
            consumer._running.assignments.rebalance_soon()
            await stops_at(consumer, 40)


async def test_finished_messages_behind_an_unfinished_one_count_only_for_the_span(cluster):
    fill(cluster, 100)
    options = {"pull_batch_size": 10, "max_outstanding_bytes": 160, "max_span": 60}
    async with PushConsumer(cluster.namesrv, "CG", "T", auto_ack=False, **options) as consumer:
        first, *others = await take(consumer, 40)
        assert consumer.flow_stops["bytes"]
        ack(others)
        await until(lambda: consumer.flow_stops["span"] == 1)
        assert read_of(consumer) == 1 + 30
        first.ack()
        assert len(await take(consumer, 40)) == 40


def test_the_smaller_limit_of_queue_and_topic_applies():
    control = FlowControl(ReadAhead(max_outstanding=10, max_topic_outstanding=100))
    progress = QueueProgress(0)
    for offset in range(10):
        assert control.reason(progress, queues=1) is None
        progress.deliver(offset, 4)
    assert control.reason(progress, queues=1) == "count"
    assert FlowControl(ReadAhead(max_topic_outstanding=3)).reason(QueueProgress(0), queues=8) is None, "at least one"
