"""Reading assigned queues: the application keeps its own positions."""

from __future__ import annotations

import asyncio

import pytest
from client_fakes import HandClock, fake_cluster, until

from dledger_client import (
    ConnectError,
    DeadlineError,
    InvalidArgumentError,
    MessageQueue,
    NoRouteError,
    PullConsumer,
    RefusedError,
)
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
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
    """Return the result of a coroutine, while the test moves the clock by up to this many seconds."""
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


async def test_reading_goes_on_where_the_group_has_committed(cluster):
    fill(cluster, 50)
    async with PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign(await consumer.queues("T"))
        assert len(await consumer.poll(20)) == 20
        await consumer.commit()
    async with PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign(await consumer.queues("T"))
        assert (await consumer.poll(20))[0].queue_offset == 20


async def test_seeking_by_offset_time_begin_and_end(cluster, puller):
    fill(cluster, 50)
    [queue] = await puller.queues("T")
    await puller.assign([queue])
    puller.seek(queue, 33)
    assert (await puller.poll(1))[0].queue_offset == 33
    await puller.seek_to_begin()
    assert (await puller.poll(1))[0].queue_offset == 0
    stored = cluster.group.queues["T", 0][10].store_timestamp
    await puller.seek_to_time(stored)
    assert (await puller.poll(1))[0].stored_timestamp_ms >= stored
    await puller.seek_to_end()
    assert await puller.poll(1, timeout=0.01) == []
    assert puller.positions == {queue: 50}


async def test_an_offset_beyond_the_queue_is_moved_to_its_first_message(cluster, puller):
    fill(cluster, 5)
    [queue] = await puller.queues("T")
    await puller.assign([queue])
    puller.seek(queue, 70)
    found = await puller.poll(10, timeout=10)
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


async def test_positions_advance_over_messages_that_the_tag_filter_rejects(cluster):
    async with PullConsumer(cluster.namesrv, "CG", filter="even") as consumer:
        fill(cluster, 10)
        [queue] = await consumer.queues("T")
        await consumer.assign([queue])
        assert [message.queue_offset for message in await consumer.poll(32)] == [0, 2, 4, 6, 8]
        assert consumer.positions == {queue: 10}


async def test_a_killed_leader_does_not_stop_reading(cluster, puller):
    fill(cluster, 10)
    await puller.assign(await puller.queues("T"))
    assert len(await puller.poll(5)) == 5
    await cluster.group.nodes[0].kill()
    assert len(await puller.poll(5, timeout=5)) == 5


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


async def test_unassigned_and_missing_queues_are_errors():
    async with fake_cluster() as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        with pytest.raises(InvalidArgumentError, match="no queue is assigned"):
            await consumer.poll()
        with pytest.raises(InvalidArgumentError, match="not one of the 4"):
            await consumer.assign([("T", "broker-a", 4)])
        with pytest.raises(InvalidArgumentError, match="not assigned"):
            consumer.seek(MessageQueue("T", "broker-a", 0), 1)
        with pytest.raises(NoRouteError):
            await consumer.queues("nowhere")


async def test_a_queue_that_stays_unreadable_is_an_error_and_a_short_failure_is_a_delay(cluster):
    async with PullConsumer(cluster.namesrv, "CG", timeout=10) as consumer:
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


async def test_a_poll_returns_messages_before_an_unreadable_one_and_then_raises(cluster, puller):
    fill(cluster, 3)
    cluster.group.store("T", 0, b"no zlib stream", b"", sys_flag=SYS_COMPRESSED)
    await puller.assign(await puller.queues("T"))
    assert len(await puller.poll(32)) == 3
    with pytest.raises(RefusedError, match="the message at offset 3 of T/broker-a/0: zlib stream"):
        await puller.poll(32)
    fill(cluster, 1)
    async with PullConsumer(cluster.namesrv, "CG", keep_unreadable=True) as keeping:
        await keeping.assign(await keeping.queues("T"))
        *_, unreadable, behind = await keeping.poll(32)
    assert (unreadable.queue_offset, unreadable.body, behind.fault) == (3, b"no zlib stream", None)
    assert unreadable.fault.startswith("zlib stream")


async def test_a_topic_that_was_made_again_is_read_from_its_first_message(cluster, puller):
    fill(cluster, 3)
    await puller.assign(await puller.queues("T"))
    assert len(await puller.poll(32)) == 3
    cluster.group.queues["T", 0].clear()
    cluster.group.created["T"] += 1
    await puller.commit()
    assert not cluster.group.offsets
    fill(cluster, 7)
    assert [message.queue_offset for message in await poll_all(puller, 7)] == list(range(7))
    await puller.commit()
    assert cluster.group.offsets["CG", "T", 0] == 7


def pulls_of(cluster, queue_id):
    pulls = [command.ext for command in cluster.requests(RequestCode.PULL_MESSAGE)]
    return [ext for ext in pulls if ext["queueId"] == str(queue_id)]


async def test_an_empty_queue_is_pulled_once_while_other_queues_have_messages():
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


async def test_seeking_discards_the_pending_pull_of_an_earlier_poll():
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        await consumer.assign(await consumer.queues("T"))
        fill(cluster, 3)
        assert len(await consumer.poll(3, timeout=10)) == 3
        fill(cluster, 3, queue_id=1)
        consumer.seek(("T", "broker-a", 1), 2)
        assert [(one.queue_id, one.queue_offset) for one in await consumer.poll(3, timeout=10)] == [(1, 2)]


async def test_a_pull_that_failed_after_a_poll_does_not_fail_the_next_poll():
    """A topic that was missing may exist again."""
    async with fake_cluster(topics={"T": 2}) as cluster, PullConsumer(cluster.namesrv, "CG") as consumer:
        node, gone = cluster.group.nodes[0], asyncio.Event()

        async def pulled(command):
            if command.ext["queueId"] == "1" and not gone.is_set():
                await gone.wait()
                return make_response(command, ResponseCode.TOPIC_NOT_EXIST, "topic T does not exist")
            return await node._pull(command)

        node.on[RequestCode.PULL_MESSAGE] = pulled
        await consumer.assign(await consumer.queues("T"))
        fill(cluster, 1)
        assert len(await consumer.poll(1, timeout=10)) == 1
        gone.set()
        await until(lambda: all(one.task.done() for one in consumer._pulls.values()))
        assert await consumer.poll(1, timeout=0) == []
