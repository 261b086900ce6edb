"""Reading assigned queues: positions are the application's own."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock, fake_cluster

from dledger_client import (
    ConnectError,
    DeadlineError,
    InvalidArgumentError,
    MessageQueue,
    NoRouteError,
    PullConsumer,
    RefusedError,
)
from dledger_remoting.codes import RequestCode
from dledger_remoting.record import SYS_COMPRESSED


def fill(cluster, count, queue_id=0):
    for number in range(count):
        cluster.group.store("T", queue_id, b"%04d" % number, b"TAGS\x01even\x02" if number % 2 == 0 else b"")


async def poll_all(consumer, count):
    messages = []
    while len(messages) < count:
        found = await consumer.poll(16, timeout=5)
        assert found
        messages += found
    return messages


async def poll_forever(consumer):
    while True:
        assert await consumer.poll(1, timeout=1) == []


async def done(clock, work, seconds):
    """What a coroutine comes to within so many seconds of a clock that is moved by hand."""
    task = asyncio.create_task(work)
    end = asyncio.get_running_loop().time() + seconds
    while not task.done() and asyncio.get_running_loop().time() < end:
        clock.advance(0.01)
        await asyncio.sleep(0)
    assert task.done()
    return await task


async def test_assigned_queues_are_read_in_order_from_the_first_message():
    async with fake_cluster() as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        fill(cluster, 50)
        fill(cluster, 50, queue_id=1)
        await consumer.assign([("T", "broker-a", 0), ("T", "broker-a", 1)])
        messages = await poll_all(consumer, 100)
        for queue_id in (0, 1):
            mine = [message.queue_offset for message in messages if message.queue_id == queue_id]
            assert mine == list(range(50))


async def test_reading_goes_on_where_the_group_has_committed():
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 50)
        async with PullConsumer(cluster.namesrv, "CG") as consumer:
            await consumer.assign(await consumer.queues("T"))
            assert len(await consumer.poll(20)) == 20
            await consumer.commit()
        async with PullConsumer(cluster.namesrv, "CG") as consumer:
            await consumer.assign(await consumer.queues("T"))
            assert (await consumer.poll(20))[0].queue_offset == 20


async def test_seeking_by_offset_time_begin_and_end():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        fill(cluster, 50)
        [queue] = await consumer.queues("T")
        await consumer.assign([queue])
        consumer.seek(queue, 33)
        assert (await consumer.poll(1))[0].queue_offset == 33
        await consumer.seek_to_begin()
        assert (await consumer.poll(1))[0].queue_offset == 0
        stored = cluster.group.queues["T", 0][10].store_timestamp
        await consumer.seek_to_time(stored)
        assert (await consumer.poll(1))[0].stored_timestamp_ms >= stored
        await consumer.seek_to_end()
        assert await consumer.poll(1, timeout=0.01) == []
        assert consumer.positions == {queue: 50}


async def test_an_offset_beyond_the_queue_is_moved_to_its_first_message():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        fill(cluster, 5)
        [queue] = await consumer.queues("T")
        await consumer.assign([queue])
        consumer.seek(queue, 70)
        found = await consumer.poll(10, timeout=10)
        assert [message.queue_offset for message in found] == list(range(5))


async def test_messages_that_do_not_fit_are_read_by_the_next_poll():
    async with fake_cluster() as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        for queue_id in range(4):
            fill(cluster, 3, queue_id=queue_id)
        await consumer.assign(await consumer.queues("T"))
        seen = []
        while len(seen) < 12:
            found = await consumer.poll(2, timeout=5)
            assert 0 < len(found) <= 2
            seen += [(message.queue_id, message.queue_offset) for message in found]
        assert sorted(seen) == [(queue_id, offset) for queue_id in range(4) for offset in range(3)]


async def test_tags_filter_and_positions_pass_over_what_does_not_match():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG", filter="even") as consumer:
        fill(cluster, 10)
        [queue] = await consumer.queues("T")
        await consumer.assign([queue])
        assert [message.queue_offset for message in await consumer.poll(32)] == [0, 2, 4, 6, 8]
        assert consumer.positions == {queue: 10}


async def test_a_killed_leader_does_not_stop_reading():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        fill(cluster, 10)
        await consumer.assign(await consumer.queues("T"))
        assert len(await consumer.poll(5)) == 5
        await cluster.group.nodes[0].kill()
        assert len(await consumer.poll(5, timeout=5)) == 5


async def test_a_queue_that_cannot_be_read_costs_no_message_of_another(monkeypatch):
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        fill(cluster, 3)
        await consumer.assign(await consumer.queues("T"))
        messages = await consumer.poll(3)
        assert len(messages) == 3

        async def pull(queue, *_):
            if queue.queue_id == 1 or not messages:
                raise DeadlineError("nobody answers")
            return messages, 3

        monkeypatch.setattr(consumer, "_pull", pull)
        assert await consumer.poll(3) == messages
        messages.clear()
        with pytest.raises(DeadlineError):
            await consumer.poll(3)


async def test_what_is_not_assigned_or_does_not_exist_is_an_error():
    async with fake_cluster() as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        with pytest.raises(InvalidArgumentError, match="no queue is assigned"):
            await consumer.poll()
        with pytest.raises(InvalidArgumentError, match="not one of the 4"):
            await consumer.assign([("T", "broker-a", 4)])
        with pytest.raises(InvalidArgumentError, match="not assigned"):
            consumer.seek(MessageQueue("T", "broker-a", 0), 1)
        with pytest.raises(NoRouteError):
            await consumer.queues("nowhere")


async def test_a_queue_that_stays_unreadable_is_an_error_and_a_short_failure_is_a_delay():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG", timeout=10) as consumer:
        fill(cluster, 1)
        await consumer.assign(await consumer.queues("T"))
        for node in cluster.group.nodes:
            await node.kill()
        with HandClock() as clock:
            assert await done(clock, consumer.poll(1, timeout=1), 2) == []
            with pytest.raises(ConnectError):
                await done(clock, poll_forever(consumer), 12)
        for node in cluster.group.nodes:
            await node.start()
        assert await poll_all(consumer, 1)


async def test_what_comes_before_a_message_that_cannot_be_read_is_returned_and_then_the_error():
    async with fake_cluster(topics={"T": 1}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        fill(cluster, 3)
        cluster.group.store("T", 0, b"no zlib stream", b"", sys_flag=SYS_COMPRESSED)
        await consumer.assign(await consumer.queues("T"))
        assert len(await consumer.poll(32)) == 3
        with pytest.raises(RefusedError, match="the message at offset 3 of T/broker-a/0: zlib stream"):
            await consumer.poll(32)


def pulls_of(cluster, queue_id):
    node = cluster.group.nodes[0]
    return [
        command.ext
        for command in node.received
        if command.code == RequestCode.PULL_MESSAGE and command.ext["queueId"] == str(queue_id)
    ]


async def test_a_queue_without_messages_is_asked_once_while_others_bring_some():
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign(await consumer.queues("T"))
        for _ in range(10):
            fill(cluster, 1)
            assert len(await consumer.poll(1, timeout=10)) == 1
        assert len(pulls_of(cluster, 1)) == 1
        fill(cluster, 1, queue_id=1)
        [message] = await consumer.poll(1, timeout=10)
        assert (message.queue_id, message.queue_offset) == (1, 0)


async def test_a_poll_does_not_wait_for_the_long_poll_of_an_earlier_one():
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign(await consumer.queues("T"))
        fill(cluster, 1)
        assert len(await consumer.poll(1, timeout=15)) == 1
        async with asyncio.timeout(5):
            assert await consumer.poll(1, timeout=0) == []
        assert [ext["suspendTimeoutMillis"] for ext in pulls_of(cluster, 1)][1:] == ["0"]


async def test_seeking_discards_what_an_earlier_poll_still_waits_for():
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign(await consumer.queues("T"))
        fill(cluster, 3)
        assert len(await consumer.poll(3, timeout=10)) == 3
        fill(cluster, 3, queue_id=1)
        consumer.seek(("T", "broker-a", 1), 2)
        assert [(one.queue_id, one.queue_offset) for one in await consumer.poll(3, timeout=10)] == [(1, 2)]
