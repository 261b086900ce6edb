"""Queues in order of priority: lower ones wait until higher ones are drained, and for nothing else."""

from __future__ import annotations

import asyncio

from client_fakes import fake_cluster, until
from consuming import fill, take

from dledger_client import PushConsumer
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response


def high_of(consumer):
    return next(one for one in consumer._running.assignments.fetchers() if one.queue[::2] == ("T", 1))


async def test_messages_of_higher_queues_come_first_and_lower_ones_when_these_are_drained():
    async with fake_cluster(topics={"T": 3}) as cluster:
        fill(cluster, 100, queues=range(3))
        async with PushConsumer(cluster.namesrv, "CG", "T", priority=True, pull_batch_size=10) as consumer:
            messages = await take(consumer, 300)
        assert [message.queue_id for message in messages] == [2] * 100 + [1] * 100 + [0] * 100


async def test_a_later_message_of_a_higher_queue_is_delivered_next():
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 50)
        async with PushConsumer(cluster.namesrv, "CG", "T", priority=True) as consumer:
            await take(consumer, 10)
            fill(cluster, 1, queue_id=1)
            await until(lambda: high_of(consumer).buffer)
            assert [message.queue_id for message in await take(consumer, 41)] == [1] + [0] * 40


async def test_a_priority_function_orders_the_queues():
    async with fake_cluster(topics={"T": 3}) as cluster:
        fill(cluster, 10, queues=range(3))
        async with PushConsumer(cluster.namesrv, "CG", "T", priority=lambda queue: -queue.queue_id) as consumer:
            assert [message.queue_id for message in await take(consumer, 30)] == [0] * 10 + [1] * 10 + [2] * 10


async def test_queues_of_one_priority_take_turns():
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 20, queues=range(2))
        async with PushConsumer(cluster.namesrv, "CG", "T", priority=lambda _: 1) as consumer:
            await until(lambda: len(consumer._running.offers) == 2)
            assert {message.queue_id for message in await take(consumer, 4)} == {0, 1}


async def test_an_unreadable_paused_or_full_higher_queue_does_not_block_lower_queues():
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 30)
        node = cluster.group.nodes[0]

        async def refuse(command):
            if command.ext["queueId"] == "1" and command.ext["topic"] == "T":
                return make_response(command, ResponseCode.SYSTEM_ERROR, "unreadable")
            return await node.handle(command, None)

        cluster.answer(RequestCode.PULL_MESSAGE, refuse)
        options = {"priority": True, "max_outstanding": 8, "pull_batch_size": 8, "auto_ack": False}
        async with PushConsumer(cluster.namesrv, "CG", "T", **options) as consumer:
            assert [message.queue_id for message in await take(consumer, 2)] == [0, 0]
            for one in cluster.group.nodes:
                one.on.clear()
            fill(cluster, 20, queue_id=1)
            consumer.pause([("T", "broker-a", 1)])
            assert [message.queue_id for message in await take(consumer, 2)] == [0, 0]
            consumer.resume()
            await until(lambda: high_of(consumer).reading_stopped)
            full = [message.queue_id for message in await take(consumer, 10)]
            assert full == [1] * 8 + [0] * 2


async def test_orderly_handlers_start_with_the_higher_queue_and_run_in_parallel():
    async with fake_cluster(topics={"T": 2}) as cluster:
        fill(cluster, 10, queues=range(2))
        seen, go_on = [], asyncio.Event()

        async def handler(message):
            seen.append(message.queue_id)
            await go_on.wait()

        async with PushConsumer(cluster.namesrv, "CG", "T", handler, orderly=True, priority=True) as consumer:
            await until(lambda: seen == [1, 0])
            go_on.set()
            await until(lambda: len(seen) == 20)
            assert consumer.assignment


async def test_a_queue_whose_priority_function_fails_is_still_read(cluster, caplog):
    calls = []

    def priority(queue):
        if queue.topic == "T":
            calls.append(queue)
            if len(calls) % 2:
                raise KeyError("a cache miss")
        return 0

    fill(cluster, 1)
    async with PushConsumer(cluster.namesrv, "CG", "T", priority=priority) as consumer:
        await take(consumer, 1)
        for _ in range(5):
            fill(cluster, 1)
            await take(consumer, 1)
    assert any("the priority of T/broker-a/0 could not be determined" in one.getMessage() for one in caplog.records)
